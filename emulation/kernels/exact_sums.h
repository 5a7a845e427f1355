// How far is an output of a product from its exact sum?
// Looks at arrays that a kernel has already filled: where the factors of an output lie, their sum
// as exactly as two doubles can, and which products were too small for the sum they joined.
#pragma once

#include <cstdint>
#include <vector>

#include "emulation/kernels/conv_args.h"
#include "emulation/kernels/gemm_args.h"
#include "emulation/stats/accumulator_health.h"

namespace lockstep {

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
