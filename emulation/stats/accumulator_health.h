// The accuracy of an accumulator on the sums of a program.
// A few outputs of a product are summed again, as exactly as two doubles can, and each product is
// compared with the sum it joins. emulation/kernels/exact_sums.h measures.
#pragma once

#include <cstdint>
#include <span>

namespace lockstep {

// Over the sampled outputs of one step. `exact` is the sum of products in two doubles.
//   Error: of `exact` itself at most n^2 2^-105 sum |a b|, then one rounding to double.
struct AccumulatorHealth {
  uint64_t samples = 0;      // outputs summed again
  uint64_t compared = 0;     // those that are finite both as computed and exactly
  uint64_t addends = 0;      // products that are not zero, over the compared outputs
  uint64_t swamped = 0;      // of these, smaller than half an ulp (in the accumulator's format) of
                             // the sum of the products before them, k ascending
  double err_sq = 0;         // sum of (computed - exact)^2
  double exact_sq = 0;       // sum of exact^2
  double err_max_share = 0;  // largest |computed - exact| / sum |a b|; gamma_n bounds this

  void merge(const AccumulatorHealth& other);
  // Corrects the moments of sums that are `scale` times their true size. A scale of zero or
  // infinity changes nothing.
  void divide_by(double scale);
};

// One field: its name in a run file, and one of the two members.
struct HealthColumn {
  const char* name;
  uint64_t AccumulatorHealth::*count = nullptr;
  double AccumulatorHealth::*moment = nullptr;
};
std::span<const HealthColumn> health_columns();

}  // namespace lockstep
