// Measures how far an output of a product is from its exact sum.
// Works on arrays that a kernel has already filled. Finds the factors of an output, forms their sum
// as exactly as two doubles can, and finds the products that were too small for the running sum.
// For a few outputs, drawn by the run's seed: all of them would take longer than the step.
#pragma once

#include <cstdint>
#include <vector>

#include "emulation/kernels/args/conv_args.h"
#include "emulation/kernels/args/gemm_args.h"
#include "emulation/stats/accumulator_health.h"

namespace lockstep {

// The factors of one output, in the order of k, without products with padding.
struct SumTerms {
  std::vector<double> a, b;
  void clear() { a.clear(), b.clear(); }
  void add(double x, double y) { a.push_back(x), b.push_back(y); }
};

// Adds one output to `health`.
void add_sample(const SumTerms& terms, double computed, const Format& format,
                AccumulatorHealth& health);

// Fills `terms` for element `index` of the output C (M,N) of a product, or of a convolution's
// output. Returns the element. Requires: the kernel has run, and nothing has changed its output
// since.
template <typename T>
double sum_terms(const GemmArgs<T>& args, int64_t index, SumTerms& terms);
template <typename T>
double sum_terms(const ConvArgs<T>& args, ConvPass pass, int64_t groups, int64_t index,
                 SumTerms& terms);

}  // namespace lockstep
