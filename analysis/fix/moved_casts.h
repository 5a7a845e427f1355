// Which operands a changed policy reads in another format, as casts that a model without autocast
// needs in its code. Knows nothing of Python.
#pragma once

#include <string>
#include <vector>

#include "src/graph/ir.h"
#include "src/graph/site.h"
#include "src/policy/policy.h"

namespace lockstep {

// A forward op whose operands are cast otherwise than before.
struct MovedCasts {
  const Node* node = nullptr;
  // By floating operand that is no parameter: the format it is cast to; null: read as it comes.
  std::vector<const Format*> operands;
  // Modules whose parameters are cast: their paths.
  std::vector<std::string> modules;
  const Format* of_modules = nullptr;  // to this format
};

// In the order of the forward pass. `sites`: the table of `step`.
std::vector<MovedCasts> moved_casts(const Graph& step, const SiteTable& sites, const Policy& before,
                                    const Policy& after);

// Whether PyTorch's counterpart of the lane is a model cast to 16 bits: `.half()`, `.bfloat16()`.
bool is_model_cast(const Policy& policy);

}  // namespace lockstep
