// A fix of a model that is cast to 16 bits as a whole, as lines of PyTorch: casts around ops.
#pragma once

#include <string>
#include <vector>

#include "analysis/fix/moved_casts.h"

namespace lockstep {

// "x = op(x.float())  # fc1 linear (model.py:12)": `op` is what is called at that line; of several
// operands "x = op(a, b.float())", without parameters. Before it, where a module's parameters are
// cast, too: "model.get_submodule("fc1").float()".
std::vector<std::string> cast_lines(const Graph& step, const std::vector<MovedCasts>& casts);

}  // namespace lockstep
