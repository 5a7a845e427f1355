// The rewrite with_logits: the logarithm of a probability, computed from the logits.
//
//   log(softmax(x))  ->  log_softmax(x)
//   log(sigmoid(x))  ->  -softplus(-x)
//
// The probability may be rounded to zero where its logarithm is an ordinary number.
#pragma once

#include "src/graph/ir.h"

namespace lockstep {

// A `log` whose operand is a sigmoid or a softmax, with casts between.
bool is_log_of_probability(const Graph& forward, const Node& node);
// The probability itself stays for its other readers.
void take_log_of_logits(Graph& forward, size_t node, double);

}  // namespace lockstep
