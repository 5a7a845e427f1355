// How is a stack of matrix products computed?
// Product by product, each as its own sums; small ones are spread over the threads product by
// product, large ones inside each. Which of the two changes no bit. For ops/*.cc alone.
#pragma once

#include <vector>

#include "src/core/parallel.h"
#include "src/graph/op.h"

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
};

// Which matrix of a stack with batch dimensions `from` stands at each place of `to`; empty where
// that is the place itself. Requires: `from` broadcasts to `to`.
inline std::vector<int64_t> repeated_matrices(const Shape& from, const Shape& to) {
  if (element_count(from) == element_count(to)) return {};
  const size_t missing = to.size() - from.size();
  std::vector<int64_t> matrices(static_cast<size_t>(element_count(to)));
  for (size_t place = 0; place < matrices.size(); ++place) {
    int64_t rest = static_cast<int64_t>(place), step = 1;
    for (size_t dim = to.size(); dim-- > 0;) {
      const int64_t index = rest % to[dim];
      rest /= to[dim];
      const int64_t extent = dim < missing ? 1 : from[dim - missing];
      if (extent > 1) matrices[place] += index * step;
      step *= extent;
    }
  }
  return matrices;
}

// Up to this many multiplications a product is not worth being spread over threads itself.
inline constexpr int64_t kSmallProduct = int64_t{1} << 21;

template <typename T>
void run_stacked_gemm(const KernelSet& kernels, const StackedGemm<T>& stack) {
  const GemmArgs<T>& first = stack.product;
  const int64_t a_size = first.m * first.k, b_size = first.k * first.n, c_size = first.m * first.n;
  const auto run_one = [&](int64_t i) {
    const auto at = static_cast<size_t>(i);
    GemmArgs<T> gemm = first;
    gemm.a += (stack.a_matrices.empty() ? i : stack.a_matrices[at]) * a_size;
    gemm.b += (stack.b_matrices.empty() ? i : stack.b_matrices[at]) * b_size;
    gemm.c += i * c_size;
    if (gemm.events != nullptr) gemm.events += i * c_size;
    kernels.of<T>().gemm(gemm);
  };
  if (c_size * first.k <= kSmallProduct) {
    parallel_for(stack.count, run_one);
  } else {
    for (int64_t i = 0; i < stack.count; ++i) run_one(i);
  }
}

}  // namespace lockstep
