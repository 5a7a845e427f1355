// Which networks does a fuzzer of captures begin from?
// Small ones that together use most forward ops, each op's shape rule, gradient and kernel
// included.
#pragma once

#include <vector>

#include "src/graph/ir.h"

namespace lockstep::testing {

std::vector<Graph> seed_graphs();

}  // namespace lockstep::testing
