// Labels of sites for lists, in which no two may be equal.
#pragma once

#include <string>
#include <vector>

#include "src/graph/site.h"

namespace lockstep {

// By site id. Where several sites have one label, as the gradients of a weight and of its bias do,
// each ends in what tells it apart: "fc1 linear_backward_weight grad_weight output (fc1.bias)".
std::vector<std::string> unique_labels(const SiteTable& table);

}  // namespace lockstep
