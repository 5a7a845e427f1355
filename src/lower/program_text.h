// How does a program look to people, and to other programs? This is what `lockstep explain` prints.
#pragma once

#include <string>

#include "src/graph/ir.h"
#include "src/graph/site.h"
#include "src/lower/program.h"

namespace lockstep {

// One line per op, its operands below each other with the casts that feed them.
std::string to_text(const Program& program, const Graph& step, const SiteTable& sites);

// The same for programs to read:
//   {"model": "lenet", "values": {"p:fc.weight": "fp32", "n3": "fp16", "in1": "int", ...},
//    "ops": [{"node": "n3", "layer": "fc", "op": "linear", "backward": false,
//             "inputs": [{"value": "n2", "as": "fp16"}, ...],
//             "outputs": [{"value": "n3", "format": "fp16"}, ...], "accumulator": "fp32_fused"}]}
// "as" is the format the value is read in, after any cast; "values" holds what stands between
// steps. "accumulator" is absent where an op sums no products.
std::string to_json(const Program& program, const Graph& step);

}  // namespace lockstep
