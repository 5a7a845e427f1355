// Measures sums that are not of products: pools, means, gradients of biases and of picked rows.
// The op runs again on the same operands, in FP64 and in FP32, so that every op that sums is
// measured by one rule, whatever its sums are of. Only sums in formats narrower than FP32 are
// measured.
#pragma once

#include <vector>

#include "emulation/stats/accumulator_health.h"
#include "src/graph/op.h"
#include "src/lower/program.h"

namespace lockstep {

// Whether the instruction forms other sums in a format narrower than FP32, as far as that is known
// before it runs.
bool may_sum_narrowly(const Instruction& op, const Node& node);

// By output: the error of what `call` has written. Only elements count that FP32 sums form to
// kFp32Share of their size: others cancel in any format. `addends` and `swamped` stay zero.
// Requires: containers of floats, and nothing has changed the outputs since the op ran.
std::vector<AccumulatorHealth> other_sums(const OpDef& op, const OpCall& call);

inline constexpr double kFp32Share = 0.1;

}  // namespace lockstep
