// Magnitudes are compared as bits: those of NaN and infinities are the largest.
#include "src/execute/factor_scales.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "emulation/format/whole_line.h"
#include "emulation/kernels/quantize.h"
#include "src/core/chunks.h"

namespace lockstep {
namespace {

constexpr uint32_t kMagnitude = 0x7fffffff, kInfinity = 0x7f800000;

// fn(row, first column, one past the last, block) for every piece of a row that is in one block.
template <typename Function>
void for_each_piece(const FactorScales& scales, Function fn) {
  const int64_t grain = std::max<int64_t>(1, kElementGrain / std::max<int64_t>(1, scales.cols));
  parallel_chunks(scales.rows, grain, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      for (int64_t col = 0; col < scales.cols; col += scales.block_cols) {
        fn(row, col, std::min(scales.cols, col + scales.block_cols), scales.block_at(row, col));
      }
    }
  });
}

uint32_t largest_bits(const float* x, int64_t count) {
  uint32_t largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    largest = std::max(largest, std::bit_cast<uint32_t>(x[i]) & kMagnitude);
  }
  return largest;
}

// The bits of the largest magnitude of every block.
std::vector<uint32_t> block_magnitudes(const FactorScales& scales, std::span<const float> x) {
  const int64_t across = scales.blocks_across();
  const int64_t down = (scales.rows + scales.block_rows - 1) / scales.block_rows;
  std::vector<uint32_t> largest(static_cast<size_t>(across * down));
  // A task has whole rows of blocks, so that no two write the same place.
  const int64_t elements = std::min(scales.block_rows, scales.rows) * scales.cols;
  const int64_t grain = std::max<int64_t>(1, kElementGrain / std::max<int64_t>(1, elements));
  parallel_chunks(down, grain, [&](int64_t begin, int64_t end) {
    const int64_t last_row = std::min(scales.rows, end * scales.block_rows);
    for (int64_t row = begin * scales.block_rows; row < last_row; ++row) {
      const float* from = x.data() + row * scales.cols;
      uint32_t* to = largest.data() + row / scales.block_rows * across;
      if (scales.block_cols == 1) {
        for (int64_t col = 0; col < scales.cols; ++col) {
          to[col] = std::max(to[col], std::bit_cast<uint32_t>(from[col]) & kMagnitude);
        }
        continue;
      }
      for (int64_t block = 0; block < across; ++block) {
        const int64_t col = block * scales.block_cols;
        const int64_t count = std::min(scales.block_cols, scales.cols - col);
        to[block] = std::max(to[block], largest_bits(from + col, count));
      }
    }
  });
  return largest;
}

// s of a block by the policy's own rule.
float own_scale(float amax, const FactorFormat& to) {
  const double used = std::max(amax, to.amax_epsilon);
  const auto scale = static_cast<float>(to.element->max_finite / used);
  constexpr uint32_t kSignAndExponent = 0xff800000;
  return to.fp32_scale ? scale
                       : std::bit_cast<float>(std::bit_cast<uint32_t>(scale) & kSignAndExponent);
}

}  // namespace

FactorScales find_scales(const ScaledCast& cast, std::span<const float> x) {
  const BlockFormat& format = *cast.to.block;
  const int64_t size = format.block_size;
  FactorScales scales;
  scales.rows = cast.shape.rows;
  scales.cols = cast.shape.cols;
  scales.block_rows = cast.to.square || cast.shape.axis == 0 ? size : 1;
  scales.block_cols = cast.to.square || cast.shape.axis == 1 ? size : 1;
  scales.block_rows = std::clamp<int64_t>(scales.rows, 1, scales.block_rows);
  scales.block_cols = std::clamp<int64_t>(scales.cols, 1, scales.block_cols);
  for (const uint32_t bits : block_magnitudes(scales, x)) {
    const float nan = std::numeric_limits<float>::quiet_NaN();
    const float amax = bits >= kInfinity ? nan : std::bit_cast<float>(bits);
    if (std::isnan(amax)) {
      scales.multiply.push_back(nan);
      scales.divide.push_back(nan);
    } else if (cast.to.has_own_scales()) {
      scales.multiply.push_back(own_scale(amax, cast.to));
      scales.divide.push_back(1 / scales.multiply.back());
    } else {
      scales.divide.push_back(block_scale(scale_code(amax, 1.0f, format), 1.0f, format));
      // A block of zeros may have the scale 0: its elements are zeros whatever multiplies them.
      scales.multiply.push_back(scales.divide.back() == 0 ? 1 : 1 / scales.divide.back());
    }
  }
  return scales;
}

void multiply_blocks(const FactorScales& scales, std::span<const float> factors,
                     std::span<const float> x, std::span<float> y) {
  const bool by_columns = scales.block_cols == 1;
  if (by_columns) {  // one factor for each column of a band of rows
    const int64_t grain = std::max<int64_t>(1, kElementGrain / std::max<int64_t>(1, scales.cols));
    parallel_chunks(scales.rows, grain, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const float* factor = factors.data() + scales.block_at(row, 0);
        const float* from = x.data() + row * scales.cols;
        float* to = y.data() + row * scales.cols;
        for (int64_t col = 0; col < scales.cols; ++col) to[col] = from[col] * factor[col];
      }
    });
    return;
  }
  for_each_piece(scales, [&](int64_t row, int64_t begin, int64_t end, int64_t block) {
    const float factor = factors[static_cast<size_t>(block)];
    const float* from = x.data() + row * scales.cols;
    float* to = y.data() + row * scales.cols;
    for (int64_t col = begin; col < end; ++col) to[col] = from[col] * factor;
  });
}

void quantize_with_scales(const KernelSet& set, const ScaledCast& cast, const FactorScales& scales,
                          std::span<const float> x, std::span<float> y, const QuantizeSpec& spec,
                          TensorStats* stats) {
  const Kernels<float>& kernels = set.f32;
  const auto count = static_cast<int64_t>(x.size());
  multiply_blocks(scales, scales.multiply, x, y);
  TensorStats rounded;  // in units of each block's scale
  kernels.quantize(y.data(), y.data(), count,
                   {.format = cast.to.element, .rounding = cast.to.rounding, .key = spec.key},
                   stats == nullptr ? nullptr : &rounded);
  multiply_blocks(scales, scales.divide, y, y);
  if (stats == nullptr) return;
  // Sums and extremes are those of the values themselves, counts those of the rounding.
  const Format& fp32 = find_format("fp32");
  *stats = observe<float>(set, x, fp32);
  stats->to_subnormal = rounded.to_subnormal;
  stats->saturated = rounded.saturated;
  std::vector<float> lost(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    lost[i] = y[i] - x[i];
    stats->to_zero += x[i] != 0 && y[i] == 0 ? 1 : 0;  // x s may be zero already
    stats->to_infinity += std::isfinite(x[i]) && !std::isfinite(y[i]) ? 1 : 0;
    stats->inexact += y[i] != x[i] && !std::isnan(x[i]) ? 1 : 0;
  }
  stats->round_err_sq = observe<float>(set, lost, fp32).sum_sq;
  stats->bits_hash = observe<float>(set, y, fp32).bits_hash;
}

}  // namespace lockstep
