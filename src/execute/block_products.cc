// One product of matrices for each block of the sum.
#include "src/execute/block_products.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "emulation/kernels/inner_math.h"
#include "src/core/chunks.h"
#include "src/graph/ops/sum_samples.h"

namespace lockstep {
namespace {

// A factor as a matrix of its rounded elements, summed along `axis`.
struct Factor {
  std::vector<float>& elements;
  const FactorScales& scales;
  int axis;

  int64_t along() const { return axis == 1 ? scales.cols : scales.rows; }
  const float* from(int64_t first) const {
    return elements.data() + (axis == 1 ? first : first * scales.cols);
  }
  // Element k of the sum of output row or column `at`, with its scale.
  double value(int64_t at, int64_t k) const {
    const int64_t row = axis == 1 ? at : k, col = axis == 1 ? k : at;
    return double(elements[static_cast<size_t>(row * scales.cols + col)]) *
           double(scales.divide[static_cast<size_t>(scales.block_at(row, col))]);
  }
  // r for each of the product's rows or columns, in the block of the sum that starts at `first`.
  std::vector<float> divisors(int64_t first) const {
    std::vector<float> found(static_cast<size_t>(axis == 1 ? scales.rows : scales.cols));
    for (size_t i = 0; i < found.size(); ++i) {
      const auto at = static_cast<int64_t>(i);
      const int64_t block = axis == 1 ? scales.block_at(at, first) : scales.block_at(first, at);
      found[i] = scales.divide[static_cast<size_t>(block)];
    }
    return found;
  }
};

// The elements of values under scales: value times s is within FP32's rounding of the element, and
// rounding to nearest restores it.
Factor factor_of(const OpCall& call, size_t input, const FactorScales& scales, int axis,
                 std::vector<float>& buffer) {
  const auto values = call.inputs[input]->as<float>();
  buffer.resize(values.size());
  Factor factor{buffer, scales, axis};
  multiply_blocks(scales, scales.multiply, values, factor.elements);
  float* elements = factor.elements.data();
  call.kernels.f32.quantize(elements, elements, static_cast<int64_t>(values.size()),
                            {.format = call.factor_formats[input]}, nullptr);
  return factor;
}

// acc[m,n] += part[m,n] r_a[m] r_b[n]; the first block adds to zeros.
void add_block(std::span<const float> part, std::span<const float> a, std::span<const float> b,
               bool is_first, std::span<float> acc) {
  const auto cols = static_cast<int64_t>(b.size());
  parallel_chunks(static_cast<int64_t>(a.size()), row_grain(cols), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float scale = a[static_cast<size_t>(row)];
      const float* from = part.data() + row * cols;
      float* to = acc.data() + row * cols;
      if (is_first) std::fill_n(to, cols, 0.0f);
      for (int64_t col = 0; col < cols; ++col) {
        to[col] += from[col] * scale * b[static_cast<size_t>(col)];
      }
    }
  });
}

}  // namespace

void run_block_products(const OpCall& call, std::span<const int> axes, int64_t block,
                        const FactorScales& first, const FactorScales& second,
                        BlockProductBuffers& buffers) {
  const Factor factors[] = {factor_of(call, 0, first, axes[0], buffers.elements[0]),
                            factor_of(call, 1, second, axes[1], buffers.elements[1])};
  // The rows of the output are those of x in y = x w^T, of dy in both gradients.
  const size_t by_rows = call.node.is_backward() ? 1 : 0;
  const Factor &a = factors[by_rows], &b = factors[1 - by_rows];
  if (a.along() != b.along()) {
    throw std::logic_error("block products: sums of " + std::to_string(a.along()) + " and " +
                           std::to_string(b.along()) + " terms");
  }
  Tensor& y = *call.outputs[0];
  const auto sums = y.as<float>();
  std::vector<float>& part = buffers.part;
  part.resize(sums.size());
  GemmArgs<float> gemm{.transpose_a = a.axis == 0, .transpose_b = b.axis == 1};
  gemm.m = a.axis == 1 ? a.scales.rows : a.scales.cols;
  gemm.n = b.axis == 1 ? b.scales.rows : b.scales.cols;
  gemm.lda = a.scales.cols, gemm.ldb = b.scales.cols;
  gemm.c = part.data(), gemm.ldc = gemm.n;
  gemm.accumulator = &call.gemm_accumulator, gemm.events = call.events;
  gemm.a_format = call.factor_formats[by_rows], gemm.b_format = call.factor_formats[1 - by_rows];
  if (a.along() == 0) std::ranges::fill(sums, 0.0f);
  for (int64_t at = 0; at < a.along(); at += block) {
    gemm.k = std::min(block, a.along() - at);
    gemm.a = a.from(at), gemm.b = b.from(at);
    call.kernels.f32.gemm(gemm);
    add_block(part, a.divisors(at), b.divisors(at), /*is_first=*/at == 0, sums);
  }
  sample_sums(call, gemm.m * gemm.n, [&](int64_t index, SumTerms& terms) {
    terms.clear();
    for (int64_t k = 0; k < a.along(); ++k) {
      terms.add(a.value(index / gemm.n, k), b.value(index % gemm.n, k));
    }
    return double(sums[static_cast<size_t>(index)]);
  });
  if (call.inputs.size() < 3) return;
  if (call.sums_ready) call.sums_ready();
  if (bool_attribute(call.node, "separate_bias", false)) {
    const InnerMath<float> inner{.kernels = &call.kernels.f32,
                                 .gemm_accumulator = &call.gemm_accumulator,
                                 .reduce_accumulator = &call.reduce_accumulator,
                                 .rounding = call.inner};
    inner.round(sums.data(), y.size(), /*part=*/1);
  }
  call.kernels.f32.add_channels(sums.data(), call.inputs[2]->as<float>().data(), gemm.m, gemm.n,
                                /*plane=*/1);
}

}  // namespace lockstep
