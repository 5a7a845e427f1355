// How is a stack of matrix products computed?
// Product by product, each as its own sums; small ones are spread over the threads product by
// product, large ones inside each. Which of the two changes no bit.
#pragma once

#include <numeric>
#include <vector>

#include "emulation/kernels/kernel_set.h"
#include "emulation/kernels/scalar/strided_copy.h"
#include "src/core/parallel.h"
#include "src/core/tensor.h"

namespace lockstep {

struct Matrix {
  int64_t rows, cols;
};
// The last two extents. Requires: at least 2 dimensions.
inline Matrix matrix_of(const Shape& shape) {
  return {shape[shape.size() - 2], shape.back()};
}
// All extents but the last two.
inline Shape batch_of(const Shape& shape) {
  return Shape(shape.begin(), shape.end() - 2);
}

template <typename T>
struct StackedGemm {
  GemmArgs<T> product;  // the first; C is dense, and so is every matrix of A and B
  int64_t count = 1;
  // Which matrix of A, of B each product takes, in matrices; empty: its own.
  std::vector<int64_t> a_matrices = {}, b_matrices = {};

  GemmArgs<T> one(int64_t i) const {
    const auto at = static_cast<size_t>(i);
    GemmArgs<T> gemm = product;
    gemm.a += (a_matrices.empty() ? i : a_matrices[at]) * gemm.m * gemm.k;
    gemm.b += (b_matrices.empty() ? i : b_matrices[at]) * gemm.k * gemm.n;
    gemm.c += i * gemm.m * gemm.n;
    if (gemm.events != nullptr) gemm.events += i * gemm.m * gemm.n;
    return gemm;
  }
};

// Which matrix of a stack with batch dimensions `from` stands at each place of `to`; empty where
// that is the place itself. Requires: `from` broadcasts to `to`.
inline std::vector<int64_t> repeated_matrices(const Shape& from, const Shape& to) {
  if (element_count(from) == element_count(to)) return {};
  std::vector<int64_t> own(static_cast<size_t>(element_count(from)));
  std::iota(own.begin(), own.end(), int64_t{0});
  std::vector<int64_t> matrices(static_cast<size_t>(element_count(to)));
  strided_copy(repeating_dims(from, to), own.data(), matrices.data());
  return matrices;
}

// Up to this many multiplications a product is not worth being spread over threads itself.
inline constexpr int64_t kSmallProduct = int64_t{1} << 21;

template <typename T>
void run_stacked_gemm(const Kernels<T>& kernels, const StackedGemm<T>& stack) {
  const GemmArgs<T>& first = stack.product;
  const auto run_one = [&](int64_t i) { kernels.gemm(stack.one(i)); };
  if (first.m * first.n * first.k <= kSmallProduct) {
    parallel_for(stack.count, run_one);
  } else {
    for (int64_t i = 0; i < stack.count; ++i) run_one(i);
  }
}

}  // namespace lockstep
