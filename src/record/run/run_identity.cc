#include "src/record/run/run_identity.h"

#include <fmt/format.h>

#include "src/core/text.h"
#include "src/core/text_hash.h"
#include "src/graph/json.h"
#include "src/graph/json_text.h"
#include "src/graph/same_step.h"
#include "src/record/run/options_json.h"
#include "src/record/run/run_file_names.h"

namespace lockstep {

std::string run_hash(const RunDescription& description) {
  std::string text = to_json(*description.step_graph) + options_to_json(*description.options);
  for (const LaneDescription& lane : description.lanes) text += lane.name + lane.policy.text;
  return run_names::hex(fnv1a(text));
}

std::vector<std::string> run_differences(const RunFile& file, const RunDescription& now) {
  std::vector<std::string> differences = option_differences(file.options(), *now.options);
  if (file.data() != now.data) {
    differences.push_back(
        fmt::format("data set: '{}' in the file, '{}' now", file.data(), now.data));
  }
  if (!same_json(file.graph_json(), to_json(*now.step_graph))) {
    differences.push_back("the step graph differs");
  }
  const SiteTable& sites = file.sites();
  if (sites.sites.size() != now.sites->sites.size()) {
    differences.push_back(
        fmt::format("{} sites in the file, {} now", sites.sites.size(), now.sites->sites.size()));
  } else if (const auto i = first_other_site(sites, *now.sites)) {  // later ones follow from it
    differences.push_back(fmt::format("site {}: '{}' in the file, '{}' now", *i,
                                      sites.sites[*i].label(), now.sites->sites[*i].label()));
  }
  std::vector<std::string> names, stored;
  for (const LaneDescription& lane : now.lanes) names.push_back(lane.name);
  for (const LaneInfo& lane : file.lanes()) stored.push_back(lane.name);
  if (names != stored) {
    differences.push_back(
        fmt::format("lanes: {} in the file, {} now", join(stored, ","), join(names, ",")));
    return differences;
  }
  for (size_t i = 0; i < now.lanes.size(); ++i) {
    const LaneDescription& lane = now.lanes[i];
    const LaneInfo& before = file.lanes()[i];
    if (before.policy_text != lane.policy.text) {
      differences.push_back(fmt::format("lane {}: its policy '{}' has different text now",
                                        lane.name, lane.policy.label()));
    } else if (before.policy_hash != run_names::hex(lane.policy.hash())) {
      differences.push_back(fmt::format("lane {}: the preset '{}' that its policy extends differs",
                                        lane.name, lane.policy.extends));
    }
  }
  return differences;
}

}  // namespace lockstep
