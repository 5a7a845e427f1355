// How is a sum of products formed?
// An accumulator is a declared object: a row of the table in accumulator.cc, named in policy files.
// Knows the order and the rounding of every step; knows nothing of matrices.
//
//   fused chain over k ascending:   acc = round(acc + a[k] * b[k])   product exact, one rounding
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "emulation/format.h"

namespace lockstep {

enum class AccumulatorKind : uint8_t {
  kFusedChain,  // one exact fused multiply-add per k, rounded to nearest even in `format`
};

struct Accumulator {
  std::string name;  // "fp32_fused", "fp16", "bf16", "fp64_fused"
  AccumulatorKind kind;
  const Format* format;  // of the running sum
  std::string help;      // the block picture in one or two lines
  std::string source;
};

std::span<const Accumulator> accumulators();
const Accumulator& find_accumulator(std::string_view name);  // Throws: InputError, did-you-mean

// Sticky events of one output's sum: a bit is set when any step did it.
enum AccumulatorEvent : uint8_t {
  kStepToZero = 1,      // the exact sum was nonzero and rounded to zero
  kStepToInfinity = 2,  // finite operands, infinite sum
  kStepInexact = 4,
  kStepNan = 8,
};

// One step of the chain, the definition: round(acc + a * b), product exact. Requires: a, b of at
// most 26 significand bits each and |log2| of the product within double's normal range.
double accumulate_step(const Accumulator& accumulator, double acc, double a, double b,
                       uint8_t* events = nullptr);

// acc + x with the accumulator's rounding (a sum without products: bias gradients, means).
double accumulate_add(const Accumulator& accumulator, double acc, double x);

}  // namespace lockstep
