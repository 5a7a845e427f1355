// A program as text for people and as JSON for other programs: the output of `lockstep explain`.
#pragma once

#include <string>

#include "src/graph/ir.h"
#include "src/graph/site.h"
#include "src/lower/program.h"

namespace lockstep {

// The format to which an op rounds between its parts, or null: the first of several.
inline const Format* format_inside(const Instruction& op) {
  return op.inner_formats.empty() ? nullptr : op.inner_formats[0];
}

// A block per op: its operands, one below the other, with the casts that feed them.
std::string to_text(const Program& program, const Graph& step, const SiteTable& sites);

// The same for programs:
//   {"model": "lenet", "values": {"p:fc.weight": "fp32", "n3": "fp16", "in1": "int", ...},
//    "ops": [{"node": "n3", "layer": "fc", "op": "linear", "backward": false,
//             "inputs": [{"value": "n2", "as": "fp16"}, ...],
//             "outputs": [{"value": "n3", "format": "fp16"}, ...], "accumulator": "fp32_fused"}]}
// "as" is the format the value is read in, after any cast; "values" holds the formats stored
// between steps. "accumulator" is absent if an op sums no products. "inside" is the format to which
// an op rounds between its parts, if it does.
// "products": the rows of product_recipe.h, with the same words.
std::string to_json(const Program& program, const Graph& step);

}  // namespace lockstep
