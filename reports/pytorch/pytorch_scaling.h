// [scaling] of a policy in the words of a library with scaled linear layers.
// A policy can be said where the library rounds as it asks. Nothing here was run on a GPU.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "reports/pytorch/pytorch_words.h"
#include "src/graph/ir.h"
#include "src/policy/policy.h"

namespace lockstep {

// The linear layers whose factors are scaled, and those that a `compute` rule keeps out. A product
// that is not that of an nn.Linear becomes a sentence if `unsaid` is not null.
ScaledLinears find_scaled_layers(const Policy& policy, const Graph& graph,
                                 std::vector<std::string>* unsaid);

// The kinds of --emit whose library rounds so, but for that of `library`.
std::vector<std::string> kinds_that_scale(const FactorScaling& scaling,
                                          ScalingLibrary library = ScalingLibrary::kNone);

// Absent: nothing is scaled, or the library does not round so, which becomes a sentence that names
// the libraries that do. Layers that no library can replace, since their product is not that of an
// nn.Linear, become sentences, too.
std::optional<ScaledLinears> scaled_linears(const Policy& policy, const Graph& graph,
                                            ScalingLibrary library,
                                            std::vector<std::string>& unsaid);

}  // namespace lockstep
