// What the plain records need in the way of functions.
#include "src/train/observer.h"

namespace lockstep {

std::vector<std::string> loss_names(const Graph& graph) {
  constexpr std::string_view kPrefix = "loss/";
  std::vector<std::string> names;
  for (const auto& [name, value] : graph.outputs) {
    if (name.starts_with(kPrefix) && graph.type_of(value) == TensorType{}) {
      names.push_back(name.substr(kPrefix.size()));
    }
  }
  return names;
}

void SiteRecord::merge(const SiteRecord& other) {
  if (!other.measured) return;
  if (!measured) {
    *this = other;
    return;
  }
  stats.merge(other.stats);
  error.merge(other.error);
}

}  // namespace lockstep
