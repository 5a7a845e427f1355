// How well does an accumulator do on the sums it is given?
// A few outputs of a product are summed again, as exactly as two doubles can, and the products are
// held against the sum they join. It looks at arrays that a kernel has already filled.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "emulation/kernels/kernel_set.h"
#include "emulation/kernels/scalar/grouped_conv2d.h"

namespace lockstep {

// Over the sampled outputs of one step. `exact` is the sum of products in two doubles.
//   Error: of `exact` itself at most n^2 2^-105 sum |a b|, then one rounding to double.
struct AccumulatorHealth {
  uint64_t samples = 0;      // outputs summed again
  uint64_t compared = 0;     // those finite, as computed and exactly
  uint64_t addends = 0;      // products that are not zero, over the compared outputs
  uint64_t swamped = 0;      // of these, smaller than half an ulp (in the accumulator's format) of
                             // the sum of the products before them, k ascending
  double err_sq = 0;         // sum of (computed - exact)^2
  double exact_sq = 0;       // sum of exact^2
  double err_max_share = 0;  // largest |computed - exact| / sum |a b|, the bound gamma_n is on this

  void merge(const AccumulatorHealth& other);
  // Brings the moments of sums that are `scale` times what they stand for to their true size; a
  // scale of zero or infinity leaves them as they are.
  void divide_by(double scale);
};

// The table of its fields: the name in a run file, and one of the two members.
struct HealthColumn {
  const char* name;
  uint64_t AccumulatorHealth::*count = nullptr;
  double AccumulatorHealth::*moment = nullptr;
};
std::span<const HealthColumn> health_columns();

// The factors of one output, in the order of k; products with padding are left out.
struct SumTerms {
  std::vector<double> a, b;
  void clear() { a.clear(), b.clear(); }
  void add(double x, double y) { a.push_back(x), b.push_back(y); }
};

// Joins one output to `health`.
void add_sample(const SumTerms& terms, double computed, const Format& format,
                AccumulatorHealth& health);

// Fills `terms` for element `index` of a product's output C (M,N), respectively of a convolution's.
// Returns the element. Requires: the kernel has run, and nothing has changed its output since.
template <typename T>
double sum_terms(const GemmArgs<T>& args, int64_t index, SumTerms& terms);
template <typename T>
double sum_terms(const ConvArgs<T>& args, ConvPass pass, int64_t groups, int64_t index,
                 SumTerms& terms);

}  // namespace lockstep
