// The rewrite scale_first: (q k) c  ->  (q c) k. The product of large factors may exceed a format
// in which the scaled product is an ordinary number.
#pragma once

#include "src/graph/ir.h"

namespace lockstep {

// A product or quotient by a number (below 1 in effect) whose operand is a matmul that nothing else
// reads, with casts between.
bool is_scaled_product(const Graph& forward, const Node& node);
void scale_first_operand(Graph& forward, size_t node, double);

}  // namespace lockstep
