// The networks from which fuzzers of captures begin: small ones that together use most forward ops,
// with each op's shape rule, gradient and kernel.
#pragma once

#include <vector>

#include "src/graph/ir.h"

namespace lockstep::testing {

std::vector<Graph> seed_graphs();

}  // namespace lockstep::testing
