// How is a stack of matrix products computed?
// Product by product, each as its own sums; small ones are spread over the threads product by
// product, large ones inside each. Which of the two changes no bit.
#pragma once

#include "emulation/kernels/kernel_set.h"
#include "src/core/parallel.h"

namespace lockstep {

// Up to this many multiplications a product is not worth being spread over threads itself.
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
