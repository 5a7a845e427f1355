// Attributes with a few words to choose from, as in the losses and sdpa. For ops/*.cc alone.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "src/graph/ops/op_helpers.h"

namespace lockstep {

// The index of attribute `name` in `choices`; 0, the default, when the node has no such attribute.
// Throws: InputError naming the node, the value and the choices.
inline size_t choice_attribute(const Node& node, std::string_view name,
                               std::span<const std::string_view> choices) {
  const auto found = node.attributes.find(std::string(name));
  if (found == node.attributes.end()) return 0;
  const auto* text = std::get_if<std::string>(&found->second);
  std::string list;
  for (size_t i = 0; i < choices.size(); ++i) {
    if (text != nullptr && *text == choices[i]) return i;
    list += (i > 0 ? ", '" : "'") + std::string(choices[i]) + "'";
  }
  const std::string value = text != nullptr ? "'" + *text + "'" : "not a text";
  require(false, node,
          "attribute '" + std::string(name) + "' is " + value + ", must be one of " + list);
  return 0;
}

// A loss's `reduction`, and the type of its result for row or element losses of this shape.
inline LossReduction loss_reduction(const Node& node) {
  constexpr std::string_view kNames[] = {"mean", "sum", "none"};
  return static_cast<LossReduction>(choice_attribute(node, "reduction", kNames));
}
inline Shape reduced_shape(LossReduction reduction, const Shape& shape) {
  return reduction == LossReduction::kNone ? shape : Shape{};
}

}  // namespace lockstep
