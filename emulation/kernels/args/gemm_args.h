// The arguments of a matrix product.
// One product, one with rounded factors and result, and a stack of products.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "emulation/accumulator/accumulator.h"
#include "emulation/kernels/args/quantize_spec.h"

namespace lockstep {

// Memory in which a kernel set may keep a factor in its own order between products. Sets without
// such an order ignore it.
struct KeptFactor {
  std::shared_ptr<void> packed;
};

// C[m,n] = sum over k ascending of op(A)[m,k] * op(B)[k,n], starting from 0, or from C.
// Shapes: A (M,K) or, transposed, (K,M); B (K,N) or, transposed, (N,K); C (M,N); ld*: row strides.
template <typename T>
struct GemmArgs {
  bool transpose_a = false, transpose_b = false;
  int64_t m = 0, n = 0, k = 0;
  const T* a = nullptr;
  int64_t lda = 0;
  const T* b = nullptr;
  int64_t ldb = 0;
  T* c = nullptr;
  int64_t ldc = 0;
  bool start_from_c = false;  // false: the chain starts from +0
  const Accumulator* accumulator = nullptr;
  const Format* a_format = nullptr;  // of A's and B's values, where the accumulator allows several
  const Format* b_format = nullptr;  // (see DotOperands); null: its only one
  uint8_t* events = nullptr;         // (M,N) dense sticky AccumulatorEvents, or null; OR-ed into
  // Null, or where to keep B for the next product. Requires: the products that share it run one
  // after the other on one kernel set; all else but A and C is equal, B's values too.
  KeptFactor* kept_b = nullptr;
};

// A product with its roundings and their statistics: see emulation/kernels/rounded_gemm.h.
struct GemmRounding {
  QuantizeSpec spec;             // without a format: neither rounded nor measured
  TensorStats* stats = nullptr;  // null: only rounded
};
template <typename T>
struct RoundedGemmArgs {
  GemmArgs<T> product;
  GemmRounding a, b, c;
};

// Products of matrices of one size.
template <typename T>
struct StackedGemm {
  GemmArgs<T> product;  // the first; C is dense, and so is every matrix of A and B
  int64_t count = 1;
  // The matrix of A, and of B, that each product uses, counted in matrices; empty: its own.
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

}  // namespace lockstep
