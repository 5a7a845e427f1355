// One block of a tensor core's sum.
// This model reproduces every recorded NVIDIA result: exact products, one common exponent,
// alignment by truncation, one exact sum, one rounding. Integers only.
//
//   E = max over terms of their exponent, and E_floor      (products: e_a + e_b, not normalised)
//
//   p[0]   1.0110...            |
//   p[1]      1.1010...         |.. dropped
//   c           1.0011010...    |.. dropped
//          <-- F fraction bits ->
//   sum    exact, then rounded once to the output
//
// Source: Khattak and Mikaitis, "Accurate Models of NVIDIA Tensor Cores", arXiv 2512.07004;
// Xie et al., MMA-Sim, arXiv 2511.10909.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "emulation/accumulator/accumulator.h"
#include "emulation/accumulator/aligned_block_core.h"

namespace lockstep {

// A promotion: the result of the blocks is added to the running sum.
struct RegisterAddition {
  double before, partial, after;
};

// What happened inside a block, for people (`lockstep dot`).
struct BlockTrace {
  struct Term {
    int64_t k;     // index of the product; -1 is the addend
    double value;  // exact
    int exponent;  // e_a + e_b, or that of the addend
    int64_t kept;  // in units of 2^(common_exponent - F), signed
    bool dropped;  // alignment cut something off
  };
  std::vector<Term> terms;  // nonzero ones, the addend last
  bool special = false;     // an infinity or NaN decided the result
  int common_exponent = 0;
  int64_t sum = 0;  // in units of 2^(common_exponent - F)
  double result = 0;
  std::optional<RegisterAddition> addition;  // after this block
};

// Throws: std::logic_error if x is not a value of the format. For TF32 any float is allowed: it is
// the FP32 register that holds the number.
BlockFactor decode_factor(float x, const Format& format,
                          Tf32Input tf32_input = Tf32Input::kTruncate);

// The chain of blocks over k ascending, promotion included. `traces` may be null.
double aligned_block_dot(const Accumulator& accumulator, const float* a, const Format& a_format,
                         const float* b, const Format& b_format, int64_t count, double start,
                         uint8_t* events, std::vector<BlockTrace>* traces = nullptr);

}  // namespace lockstep
