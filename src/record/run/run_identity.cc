#include "src/record/run/run_identity.h"

#include <fmt/format.h>

#include <algorithm>

#include "src/core/text.h"
#include "src/core/text_hash.h"
#include "src/graph/json.h"
#include "src/graph/json_text.h"
#include "src/record/hdf5/hdf5_handle.h"
#include "src/record/hdf5/link_name.h"
#include "src/record/run/options_json.h"
#include "src/record/run/run_file_names.h"
#include "src/record/run/site_table_io.h"

namespace lockstep {

std::string run_hash(const RunDescription& description) {
  std::string text = to_json(*description.step_graph) + options_to_json(*description.options);
  for (const LaneDescription& lane : description.lanes) text += lane.name + lane.policy.text;
  return run_names::hex(fnv1a(text));
}

std::vector<std::string> lane_names(hid_t root) {
  const hdf5::Handle lanes = hdf5::open_group(root, run_names::kLanes);
  std::vector<std::pair<int64_t, std::string>> found;
  for (const std::string& link : hdf5::link_names(lanes.id())) {
    const hdf5::Handle lane = hdf5::open_group(lanes.id(), link);
    found.emplace_back(hdf5::int_attribute(lane.id(), run_names::kIndex),
                       hdf5::unescape_link(link));
  }
  std::sort(found.begin(), found.end());
  std::vector<std::string> names;
  for (auto& [unused, name] : found) names.push_back(std::move(name));
  return names;
}

std::vector<std::string> run_differences(hid_t root, const RunDescription& now) {
  const RunOptions options = options_from_json(hdf5::text_attribute(root, run_names::kOptions));
  std::vector<std::string> differences = option_differences(options, *now.options);
  const std::string data = hdf5::text_attribute(root, run_names::kData);
  if (data != now.data) {
    differences.push_back(fmt::format("data set: '{}' in the file, '{}' now", data, now.data));
  }
  if (!same_json(hdf5::read_text(root, run_names::kGraph), to_json(*now.step_graph))) {
    differences.push_back("the step graph differs");
  }
  const SiteTable sites = read_sites(root);
  if (sites.sites.size() != now.sites->sites.size()) {
    differences.push_back(
        fmt::format("{} sites in the file, {} now", sites.sites.size(), now.sites->sites.size()));
  } else {
    for (size_t i = 0; i < sites.sites.size(); ++i) {
      const Site& x = sites.sites[i];
      const Site& y = now.sites->sites[i];
      if (x.node == y.node && x.point == y.point && x.index == y.index && x.shape == y.shape &&
          x.role == y.role) {
        continue;
      }
      differences.push_back(
          fmt::format("site {}: '{}' in the file, '{}' now", i, x.label(), y.label()));
      break;  // later ones follow from the first
    }
  }
  std::vector<std::string> names;
  for (const LaneDescription& lane : now.lanes) names.push_back(lane.name);
  const std::vector<std::string> stored = lane_names(root);
  if (names != stored) {
    differences.push_back(
        fmt::format("lanes: {} in the file, {} now", join(stored, ","), join(names, ",")));
    return differences;
  }
  const hdf5::Handle lanes = hdf5::open_group(root, run_names::kLanes);
  for (const LaneDescription& lane : now.lanes) {
    const hdf5::Handle group = hdf5::open_group(lanes.id(), hdf5::escape_link(lane.name));
    if (hdf5::read_text(group.id(), run_names::kPolicy) != lane.policy.text) {
      differences.push_back(fmt::format("lane {}: its policy '{}' has different text now",
                                        lane.name, lane.policy.label()));
    } else if (hdf5::text_attribute(group.id(), run_names::kPolicyHash) !=
               run_names::hex(lane.policy.hash())) {
      differences.push_back(fmt::format("lane {}: the preset '{}' that its policy extends differs",
                                        lane.name, lane.policy.extends));
    }
  }
  return differences;
}

}  // namespace lockstep
