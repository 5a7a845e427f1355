// The attribute `own_type` of ops that add into places that an index names: where PyTorch's kernel
// adds 16-bit numbers in 16 bits, with a rounding after every addition: "cuda", "cpu", "both" or
// "none"; absent where nobody says. A policy's [reduce] indexed selects the kernels that a lane
// follows; docs/policy.md names them. For ops/*.cc alone.
#pragma once

#include <algorithm>
#include <iterator>
#include <string>
#include <string_view>

#include "src/graph/ops/op_helpers.h"

namespace lockstep {

inline void check_own_type(const Node& node, std::string_view name) {
  constexpr std::string_view kPlaces[] = {"", "cuda", "cpu", "both", "none"};
  const std::string where = string_attribute(node, name, "");
  require(
      std::ranges::find(kPlaces, where) != std::end(kPlaces), node,
      "attribute '" + std::string(name) + "' is '" + where + "', must be cuda, cpu, both or none");
}

}  // namespace lockstep
