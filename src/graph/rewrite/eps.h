// The rewrite eps: another constant where one keeps a divisor or a root away from zero.
#pragma once

#include "src/graph/ir.h"

namespace lockstep {

// A norm's own eps, or a small positive number that is added, or the lower bound of a clamp.
bool has_eps(const Graph& forward, const Node& node);
double eps_of(const Node& node);
void set_eps(Graph& forward, size_t node, double eps);

}  // namespace lockstep
