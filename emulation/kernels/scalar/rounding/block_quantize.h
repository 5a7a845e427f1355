// Block formats by plain loops: the definition.
#pragma once

#include <vector>

#include "emulation/format/stochastic.h"
#include "emulation/kernels/args/block_spec.h"
#include "emulation/stats/tensor_stats.h"

namespace lockstep {

// `tensor_scale` is 1 except for formats with e4m3 scales; `codes` and `stats` may be null.
template <typename T>
void scalar_quantize_blocks(const T* before, T* after, const BlockShape& shape,
                            const BlockQuantizeSpec& spec, T tensor_scale, TensorStats* stats,
                            uint8_t* codes);

// Rounds one block of `size` elements, `stride` apart, the first with flat index `index`. Returns
// its scale code.
template <typename T>
uint8_t scalar_round_block(const T* before, T* after, int64_t size, int64_t stride, uint64_t index,
                           const BlockQuantizeSpec& spec, const StochasticArrayKey& key,
                           T tensor_scale);

// The statistics of a completed rounding, with the codes it used, in the layout of BlockShape.
template <typename T>
void measure_blocks(const T* before, const T* after, const BlockShape& shape,
                    const BlockFormat& format, T tensor_scale, const uint8_t* codes,
                    TensorStats* stats);

// Calls round(before, after, codes). Then, if statistics are needed, calls measure(before, after,
// codes) with codes set, on a copy of `before` if that is `after`.
template <typename T, typename Round, typename Measure>
void round_and_measure_blocks(const T* before, T* after, const BlockShape& shape,
                              const BlockFormat& format, bool measures, uint8_t* codes, Round round,
                              Measure measure) {
  if (!measures) return round(before, after, codes);
  std::vector<T> copy;
  if (before == after) {
    copy.assign(before, before + shape.count());
    before = copy.data();
  }
  std::vector<uint8_t> own_codes;
  if (codes == nullptr) {
    own_codes.resize(static_cast<size_t>(shape.scale_count(format.block_size)));
    codes = own_codes.data();
  }
  round(before, after, codes);
  measure(before, after, codes);
}

}  // namespace lockstep
