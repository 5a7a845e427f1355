// See site_labels.h.
#include "src/graph/site_labels.h"

#include <map>

namespace lockstep {
namespace {

// What a label leaves out: which weight, buffer or input, or which operand or output of which node.
std::string particulars_of(const Site& site) {
  if (is_storage(site)) return stored_name(site);
  if (!is_in_graph(site)) return parameter_of(site);
  return site.value;
}

}  // namespace

std::vector<std::string> unique_labels(const SiteTable& table) {
  std::vector<std::string> labels;
  for (const Site& site : table.sites) labels.push_back(site.label());
  const auto extend = [&](const auto& text_of) {
    std::map<std::string, int> uses;
    for (const std::string& label : labels) ++uses[label];
    for (const Site& site : table.sites) {
      std::string& label = labels[static_cast<size_t>(site.id)];
      if (uses[label] > 1) label += " (" + text_of(site) + ")";
    }
  };
  extend(particulars_of);
  extend([](const Site& site) { return "site " + std::to_string(site.id); });
  return labels;
}

}  // namespace lockstep
