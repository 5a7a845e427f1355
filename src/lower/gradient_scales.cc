// A factor of 1 adds nothing to the program.
#include "src/lower/gradient_scales.h"

namespace lockstep {

void LayerScales::set_backward(const Node& node, double scale) {
  scale_of_[node.id] = scale;
  if (scale == 1) return;
  for (const Site& site : sites_.sites) {
    if (site.node == node.id) builder_.program().site_factors[site.id] = scale;
  }
}

double LayerScales::of_node(const std::string& node_id) const {
  const auto found = scale_of_.find(node_id);
  return found == scale_of_.end() ? 1 : found->second;
}

double LayerScales::of_join(const Node& join) const {
  const std::string& of = join.gradient_of.front();
  if (graph_.parameter_of(of) == nullptr) return of_value(of);
  const double scale = of_value(join.inputs.front());
  for (const std::string& id : join.inputs) {
    if (of_value(id) != scale) return 1;
  }
  return scale;
}

int LayerScales::scaled(const std::string& gradient, double scale) {
  const int value = builder_.stored(gradient);
  const double factor = scale / of_value(gradient);
  return factor == 1 ? value : builder_.rescale(value, factor, builder_.format_of(value));
}

int LayerScales::unscaled(const std::string& gradient, const Format* format) {
  const int value = builder_.stored(gradient);
  const double scale = of_value(gradient);
  return scale == 1 ? value : builder_.rescale(value, 1 / scale, format);
}

}  // namespace lockstep
