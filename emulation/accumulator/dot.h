// The dot product of two vectors under a declared accumulator.
// The definition of every row of the accumulator table: plain loops, exact arithmetic inside, one
// output at a time. The vector kernels equal it bit for bit.
#pragma once

#include <cstdint>

#include "emulation/accumulator/accumulator.h"
#include "emulation/accumulator/accumulator_event.h"
#include "emulation/accumulator/dot_trace.h"

namespace lockstep {

// The factors of one output. Formats matter because hardware reads the encoding: an FP8 subnormal
// of E4M3 is not a subnormal of E5M2. Null means the accumulator's only operand format.
template <typename T>
struct DotOperands {
  const T* a = nullptr;
  const T* b = nullptr;
  int64_t count = 0;
  const Format* a_format = nullptr;
  const Format* b_format = nullptr;
};

// start + sum of a[k] * b[k]. `start` is a value of accumulator.register_format; NaN results are
// the canonical NaN. Requires: factors are values of their formats (T = double: fp64_fused, or any
// fused chain with |log2| of the products within double's normal range).
// Throws: std::logic_error for factors the accumulator does not take, and for events of a sum in
// FP32 that is neither a chain nor a tensor core's block (nothing there is narrower than its
// container).
template <typename T>
double accumulate_dot(const Accumulator& accumulator, const DotOperands<T>& operands, double start,
                      uint8_t* events = nullptr);

// The steps of accumulate_dot; the last one gives its result. Requires: a row that is not a tensor
// core. Throws: std::logic_error otherwise.
DotSteps trace_dot(const Accumulator& accumulator, const DotOperands<float>& operands,
                   double start);

// True if FloatChain (fast_round.h) forms the accumulator's sums of floats.
bool is_float_chain(const Accumulator& accumulator);

// One step of a fused or unfused chain: round(acc + a * b). Requires: accumulator.adds(); a, b of
// at most 26 significand bits each and |log2| of the product within double's normal range.
double accumulate_step(const Accumulator& accumulator, double acc, double a, double b,
                       uint8_t* events = nullptr);

// acc + x with the accumulator's rounding (a sum without products). Requires: accumulator.adds().
double accumulate_add(const Accumulator& accumulator, double acc, double x);

}  // namespace lockstep
