// Magnitudes are compared as bits: those of NaN and infinities are the largest. As signed numbers,
// which every processor compares in vectors.
#include "src/execute/factor_scales.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "emulation/format/whole_line.h"
#include "emulation/kernels/block_pass.h"
#include "emulation/kernels/quantize.h"
#include "emulation/stats/hash.h"
#include "src/core/chunks.h"

namespace lockstep {
namespace {

constexpr int32_t kMagnitude = 0x7fffffff, kInfinity = 0x7f800000;

int32_t magnitude_bits(float x) {
  return std::bit_cast<int32_t>(x) & kMagnitude;
}

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

int32_t largest_bits(const float* x, int64_t count) {
  int32_t largest = 0;
  for (int64_t i = 0; i < count; ++i) largest = std::max(largest, magnitude_bits(x[i]));
  return largest;
}

// The bits of the largest magnitude of every block.
std::vector<int32_t> block_magnitudes(const FactorScales& scales, std::span<const float> x) {
  const int64_t across = scales.blocks_across();
  const int64_t down = (scales.rows + scales.block_rows - 1) / scales.block_rows;
  std::vector<int32_t> largest(static_cast<size_t>(across * down));
  // A task has whole rows of blocks, so that no two write the same place.
  const int64_t elements = std::min(scales.block_rows, scales.rows) * scales.cols;
  const int64_t grain = std::max<int64_t>(1, kElementGrain / std::max<int64_t>(1, elements));
  parallel_chunks(down, grain, [&](int64_t begin, int64_t end) {
    const int64_t last_row = std::min(scales.rows, end * scales.block_rows);
    for (int64_t row = begin * scales.block_rows; row < last_row; ++row) {
      const float* from = x.data() + row * scales.cols;
      int32_t* to = largest.data() + row / scales.block_rows * across;
      if (scales.block_cols == 1) {
        for (int64_t col = 0; col < scales.cols; ++col) {
          to[col] = std::max(to[col], magnitude_bits(from[col]));
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

// What a rounding did, element by element, as the block kernels count it.
struct RoundingCounts {
  uint64_t to_zero = 0, to_infinity = 0, inexact = 0, hash = 0;

  void merge(const RoundingCounts& other) {
    to_zero += other.to_zero;
    to_infinity += other.to_infinity;
    inexact += other.inexact;
    hash += other.hash;
  }
};

// Rows of the virtual lanes, in which x became y, from row `first` on: at most a reduction block.
// Each loop has one width of numbers and a sum in every lane, so that the compiler makes vectors.
void count_rows(const float* x, const float* y, int64_t first, int64_t rows, uint64_t* hashes,
                double* errors, RoundingCounts& counts) {
  constexpr int64_t kLanes = kReductionLanes;
  int32_t to_zero[kLanes] = {}, to_infinity[kLanes] = {}, inexact[kLanes] = {};
  int32_t largest[kLanes] = {};
  for (int64_t i = 0; i < rows * kLanes; i += kLanes) {
    for (int64_t l = 0; l < kLanes; ++l) {
      const int32_t before = magnitude_bits(x[i + l]), after = magnitude_bits(y[i + l]);
      to_zero[l] += int{before != 0} & int{after == 0};
      to_infinity[l] += int{before < kInfinity} & int{after >= kInfinity};
      inexact[l] += int{x[i + l] != y[i + l]} & int{before <= kInfinity};
      largest[l] = std::max(largest[l], std::max(before, after));
    }
  }
  for (int64_t row = 0; row < rows; ++row) {
    const uint64_t key = hash_row_key(static_cast<uint64_t>(first + row));
    for (int64_t l = 0; l < kLanes; ++l) {
      const uint64_t mixed = std::bit_cast<uint32_t>(y[row * kLanes + l]) ^ key;
      hashes[l] += mixed * mixed;
    }
  }
  const bool all_finite = *std::ranges::max_element(largest) < kInfinity;
  for (int64_t i = 0; i < rows * kLanes && all_finite; i += kLanes) {
    for (int64_t l = 0; l < kLanes; ++l) {
      const double error = double(y[i + l]) - double(x[i + l]);
      errors[l] += error * error;
    }
  }
  for (int64_t i = 0; i < rows * kLanes && !all_finite; ++i) {
    const double error = double(y[i]) - double(x[i]);
    if (std::isfinite(x[i]) && std::isfinite(y[i])) errors[i % kLanes] += error * error;
  }
  for (int64_t l = 0; l < kLanes; ++l) {
    counts.to_zero += static_cast<uint64_t>(to_zero[l]);
    counts.to_infinity += static_cast<uint64_t>(to_infinity[l]);
    counts.inexact += static_cast<uint64_t>(inexact[l]);
  }
}

// Sums and extremes are those of the values themselves, counts those of the rounding.
TensorStats measured(const KernelSet& set, std::span<const float> x, std::span<const float> y,
                     const TensorStats& rounded) {
  RoundingCounts counts;
  const auto errors = for_each_chunk<1>(
      static_cast<int64_t>(x.size()), &counts,
      [&](int64_t begin, int64_t end, RoundingCounts& part, BlockSums<1>* sums) {
        uint64_t hashes[kReductionLanes] = {};
        for (; begin < end; begin += kReductionBlock, ++sums) {
          VirtualLanes errors_of_block;
          const int64_t block_end = std::min(end, begin + kReductionBlock);
          const int64_t rows = (block_end - begin) / kReductionLanes;
          count_rows(x.data() + begin, y.data() + begin, begin / kReductionLanes, rows, hashes,
                     errors_of_block.lane, part);
          const int64_t i = begin + rows * kReductionLanes;
          if (i < block_end) {  // zeros change nothing but the hash
            float from[kReductionLanes] = {}, to[kReductionLanes] = {};
            uint64_t own[kReductionLanes] = {};
            std::copy(x.data() + i, x.data() + block_end, from);
            std::copy(y.data() + i, y.data() + block_end, to);
            count_rows(from, to, i / kReductionLanes, 1, own, errors_of_block.lane, part);
            for (int64_t l = 0; l < block_end - i; ++l) hashes[l] += own[l];
          }
          sums->sum[0] = errors_of_block.join();
        }
        for (uint64_t l = 0; l < kHashLanes; ++l) part.hash += hash_factor(l) * hashes[l];
      });
  TensorStats stats = observe<float>(set, x, find_format("fp32"));
  stats.to_subnormal = rounded.to_subnormal;
  stats.saturated = rounded.saturated;
  stats.to_zero = counts.to_zero;  // x s may be zero already
  stats.to_infinity = counts.to_infinity;
  stats.inexact = counts.inexact;
  stats.round_err_sq = errors.sum[0];
  stats.bits_hash = counts.hash;
  return stats;
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
  for (const int32_t bits : block_magnitudes(scales, x)) {
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
  if (stats != nullptr) *stats = measured(set, x, y, rounded);
}

}  // namespace lockstep
