// One product per band of 16 rows, or per 16 columns.
#include "src/execute/hadamard.h"

#include <array>
#include <bit>
#include <stdexcept>
#include <string>

namespace lockstep {
namespace {

using Matrix = std::array<float, kHadamardSize * kHadamardSize>;

// m[i][j] = s_i h_ij / 4
Matrix make_matrix(uint32_t signs) {
  constexpr float kNorm = 0.25f;  // 1 / sqrt(16)
  Matrix m;
  for (uint32_t i = 0; i < kHadamardSize; ++i) {
    for (uint32_t j = 0; j < kHadamardSize; ++j) {
      const bool is_odd = std::popcount(i & j) % 2 == 1;
      const bool is_negated = (signs >> i) % 2 == 1;
      m[i * kHadamardSize + j] = is_odd == is_negated ? kNorm : -kNorm;
    }
  }
  return m;
}

}  // namespace

void rotate(const KernelSet& set, std::span<const float> x, std::span<float> y,
            const BlockShape& shape, uint16_t signs) {
  if (shape.along() % kHadamardSize != 0) {
    throw std::logic_error("hadamard: " + std::to_string(shape.along()) +
                           " elements along the sum, must be a multiple of 16");
  }
  const Matrix matrix = make_matrix(signs);
  static const Format& bf16 = find_format("bf16");
  const bool by_rows = shape.axis == 1;
  GemmArgs<float> gemm{.k = kHadamardSize, .accumulator = &find_accumulator("fp32_fused")};
  if (by_rows) {  // Y (rows, 16) = X (rows, 16) M
    gemm.m = shape.rows, gemm.n = kHadamardSize;
    gemm.b = matrix.data(), gemm.ldb = kHadamardSize;
    gemm.lda = shape.cols;
  } else {  // Y (16, cols) = M^T X (16, cols)
    gemm.transpose_a = true;
    gemm.m = kHadamardSize, gemm.n = shape.cols;
    gemm.a = matrix.data(), gemm.lda = kHadamardSize;
    gemm.ldb = shape.cols;
  }
  gemm.ldc = shape.cols;
  const int64_t step = by_rows ? kHadamardSize : kHadamardSize * shape.cols;
  for (int64_t group = 0; group < shape.along() / kHadamardSize; ++group) {
    (by_rows ? gemm.a : gemm.b) = x.data() + group * step;
    gemm.c = y.data() + group * step;
    set.f32.gemm(gemm);
  }
  set.f32.quantize(y.data(), y.data(), shape.count(), {.format = &bf16}, nullptr);
}

}  // namespace lockstep
