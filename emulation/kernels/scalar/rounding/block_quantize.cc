// One block after the other: largest magnitude, scale, elements. Blocks are independent, so any
// thread may process any block.
#include "emulation/kernels/scalar/rounding/block_quantize.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "emulation/format/stochastic.h"
#include "emulation/kernels/block_pass.h"
#include "src/core/chunks.h"

namespace lockstep {
namespace {

// The largest magnitude; NaN if there is a NaN or an infinity.
template <typename T>
T block_abs_max(const T* x, int64_t size, int64_t stride) {
  T largest = 0;
  for (int64_t i = 0; i < size; ++i) {
    const T magnitude = std::abs(x[i * stride]);
    if (!std::isfinite(magnitude)) return std::numeric_limits<T>::quiet_NaN();
    largest = std::max(largest, magnitude);
  }
  return largest;
}

}  // namespace

template <typename T>
void measure_blocks(const T* before, const T* after, const BlockShape& shape,
                    const BlockFormat& format, T tensor_scale, const uint8_t* codes,
                    TensorStats* stats) {
  // The limits that go with each scale code.
  constexpr int kCodes = 256;
  std::vector<StatsLimits> limits(kCodes, StatsLimits(*format.element));
  for (int code = 0; code < kCodes; ++code) {
    const T scale = block_scale(static_cast<uint8_t>(code), tensor_scale, format);
    limits[static_cast<size_t>(code)].max_finite = block_value(format.element->max_finite, scale);
    limits[static_cast<size_t>(code)].min_normal = block_value(format.element->min_normal(), scale);
  }
  const int64_t size = format.block_size, cols = shape.cols;
  const int64_t blocks = shape.blocks_along(format.block_size);
  *stats = TensorStats();
  const auto totals = for_each_chunk<kQuantizeSums>(
      shape.count(), stats,
      [&](int64_t begin, int64_t end, TensorStats& part, BlockSums<kQuantizeSums>* sums) {
        int64_t row = begin / cols, col = begin % cols;
        for (int64_t block = begin; block < end; block += kReductionBlock, ++sums) {
          VirtualLanes squares, errors;
          const int64_t block_end = std::min(end, block + kReductionBlock);
          for (int64_t i = block; i < block_end; ++i) {
            const int64_t slot =
                shape.axis == 1 ? row * blocks + col / size : row / size * cols + col;
            const int64_t lane = i % kReductionLanes;
            measure_element(before[i], after[i], static_cast<uint64_t>(i), limits[codes[slot]],
                            part, squares.lane[lane], errors.lane[lane]);
            if (++col == cols) {
              col = 0;
              ++row;
            }
          }
          sums->sum[kSquares] = squares.join();
          sums->sum[kRoundErrors] = errors.join();
        }
      });
  stats->sum_sq = totals.sum[kSquares];
  stats->round_err_sq = totals.sum[kRoundErrors];
}

template <typename T>
uint8_t scalar_round_block(const T* before, T* after, int64_t size, int64_t stride, uint64_t index,
                           const BlockQuantizeSpec& spec, const StochasticArrayKey& key,
                           T tensor_scale) {
  const BlockFormat& format = *spec.format;
  const bool stochastic = spec.rounding == Rounding::kStochastic;
  const T amax = block_abs_max(before, size, stride);
  const uint8_t code = scale_code(amax, tensor_scale, format);
  const T scale = block_scale(code, tensor_scale, format);
  for (int64_t i = 0; i < size; ++i) {
    const int64_t at = i * stride;
    const uint32_t random =
        stochastic ? stochastic_bits(key, index + static_cast<uint64_t>(at)) : 0;
    after[at] = block_value(block_element(before[at], scale, format, spec.rounding, random), scale);
  }
  return code;
}

template <typename T>
void scalar_quantize_blocks(const T* before, T* after, const BlockShape& shape,
                            const BlockQuantizeSpec& spec, T tensor_scale, TensorStats* stats,
                            uint8_t* codes) {
  const int format_size = spec.format->block_size;
  const int64_t size = format_size, cols = shape.cols;
  const StochasticArrayKey key = derive_array_key(spec.key);
  const auto round = [&](const T* x, T* y, uint8_t* out) {
    const auto block = [&](int64_t at, int64_t count, int64_t stride, int64_t slot) {
      const uint8_t code = scalar_round_block(x + at, y + at, count, stride,
                                              static_cast<uint64_t>(at), spec, key, tensor_scale);
      if (out != nullptr) out[slot] = code;
    };
    const int64_t blocks = shape.blocks_along(format_size);
    const int64_t grain =
        std::max<int64_t>(1, kChunk / std::clamp<int64_t>(shape.along(), 1, size));
    if (shape.axis == 1) {
      parallel_chunks(shape.rows * blocks, grain, [&](int64_t begin, int64_t end) {
        for (int64_t slot = begin; slot < end; ++slot) {
          const int64_t row = slot / blocks, at = slot % blocks * size;
          block(row * cols + at, std::min(size, cols - at), 1, slot);
        }
      });
    } else {
      parallel_chunks(blocks * cols, grain, [&](int64_t begin, int64_t end) {
        for (int64_t slot = begin; slot < end; ++slot) {
          const int64_t row = slot / cols * size, col = slot % cols;
          block(row * cols + col, std::min(size, shape.rows - row), cols, slot);
        }
      });
    }
  };
  const auto measure = [&](const T* x, const T* y, const uint8_t* used) {
    measure_blocks(x, y, shape, *spec.format, tensor_scale, used, stats);
  };
  round_and_measure_blocks(before, after, shape, *spec.format, stats != nullptr, codes, round,
                           measure);
}

template void measure_blocks(const float*, const float*, const BlockShape&, const BlockFormat&,
                             float, const uint8_t*, TensorStats*);
template void measure_blocks(const double*, const double*, const BlockShape&, const BlockFormat&,
                             double, const uint8_t*, TensorStats*);
template uint8_t scalar_round_block(const float*, float*, int64_t, int64_t, uint64_t,
                                    const BlockQuantizeSpec&, const StochasticArrayKey&, float);
template uint8_t scalar_round_block(const double*, double*, int64_t, int64_t, uint64_t,
                                    const BlockQuantizeSpec&, const StochasticArrayKey&, double);
template void scalar_quantize_blocks(const float*, float*, const BlockShape&,
                                     const BlockQuantizeSpec&, float, TensorStats*, uint8_t*);
template void scalar_quantize_blocks(const double*, double*, const BlockShape&,
                                     const BlockQuantizeSpec&, double, TensorStats*, uint8_t*);

}  // namespace lockstep
