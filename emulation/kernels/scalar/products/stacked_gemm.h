// Computes a stack of matrix products.
// Each product has its own sums. Small products are spread over the threads; large ones are each
// split over the threads. The bits are the same.
#pragma once

#include "emulation/kernels/kernel_set.h"
#include "src/core/parallel.h"

namespace lockstep {

// A product with at most this many multiplications is not split over threads.
inline constexpr int64_t kSmallProduct = int64_t{1} << 21;

template <typename T>
void scalar_stacked_gemm(const Kernels<T>& kernels, const StackedGemm<T>& stack) {
  const GemmArgs<T>& first = stack.product;
  const auto run_one = [&](int64_t i) { kernels.gemm(stack.one(i)); };
  if (first.m * first.n * first.k <= kSmallProduct) {
    parallel_for(stack.count, run_one);
  } else {
    for (int64_t i = 0; i < stack.count; ++i) run_one(i);
  }
}

}  // namespace lockstep
