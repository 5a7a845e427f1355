// Each square: largest magnitude, scale, elements. The codes are kept once per row of the square.
// This is the layout of blocks along rows, so the statistics are those of such blocks.
#include "emulation/kernels/scalar/rounding/block_squares.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "emulation/kernels/scalar/rounding/block_quantize.h"
#include "src/core/chunks.h"

namespace lockstep {
namespace {

struct Square {
  int64_t first_row, last_row, first_col, last_col;  // last: one past the end
};

// The largest magnitude; NaN if there is a NaN or an infinity.
template <typename T>
T square_abs_max(const T* x, int64_t cols, const Square& s) {
  T largest = 0;
  for (int64_t row = s.first_row; row < s.last_row; ++row) {
    for (int64_t col = s.first_col; col < s.last_col; ++col) {
      const T magnitude = std::abs(x[row * cols + col]);
      if (!std::isfinite(magnitude)) return std::numeric_limits<T>::quiet_NaN();
      largest = std::max(largest, magnitude);
    }
  }
  return largest;
}

}  // namespace

template <typename T>
void scalar_quantize_block_squares(const T* before, T* after, int64_t rows, int64_t cols,
                                   const BlockQuantizeSpec& spec, TensorStats* stats) {
  const BlockFormat& format = *spec.format;
  const BlockShape shape{rows, cols, /*axis=*/1};
  const int64_t size = format.block_size, across = shape.blocks_along(format.block_size);
  const int64_t down = (rows + size - 1) / size;
  const bool stochastic = spec.rounding == Rounding::kStochastic;
  const StochasticArrayKey key = derive_array_key(spec.key);
  const auto round = [&](const T* x, T* y, uint8_t* codes) {
    const int64_t grain = square_grain(size, rows, cols);
    parallel_chunks(down * across, grain, [&](int64_t begin, int64_t end) {
      for (int64_t slot = begin; slot < end; ++slot) {
        const int64_t row = slot / across * size, col = slot % across * size;
        const Square s{row, std::min(rows, row + size), col, std::min(cols, col + size)};
        const uint8_t code = scale_code(square_abs_max(x, cols, s), T(1), format);
        const T scale = block_scale(code, T(1), format);
        for (int64_t r = s.first_row; r < s.last_row; ++r) {
          if (codes != nullptr) codes[r * across + slot % across] = code;
          for (int64_t i = r * cols + s.first_col; i < r * cols + s.last_col; ++i) {
            const uint32_t random = stochastic ? stochastic_bits(key, static_cast<uint64_t>(i)) : 0;
            y[i] = block_value(block_element(x[i], scale, format, spec.rounding, random), scale);
          }
        }
      }
    });
  };
  const auto measure = [&](const T* x, const T* y, const uint8_t* codes) {
    measure_blocks(x, y, shape, format, T(1), codes, stats);
  };
  round_and_measure_blocks<T>(before, after, shape, format, stats != nullptr, nullptr, round,
                              measure);
}

template void scalar_quantize_block_squares(const float*, float*, int64_t, int64_t,
                                            const BlockQuantizeSpec&, TensorStats*);
template void scalar_quantize_block_squares(const double*, double*, int64_t, int64_t,
                                            const BlockQuantizeSpec&, TensorStats*);

}  // namespace lockstep
