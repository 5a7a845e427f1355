// Chooses between values by an integer mask, and makes such masks: from comparisons, or random. A
// mask element is true if it is not 0.
#pragma once

#include <cstdint>

#include "emulation/kernels/args/elementwise_args.h"
#include "src/core/random.h"

namespace lockstep {

// mask[i] = 1 if a[i] and b[i] compare so, else 0.
template <typename T>
void scalar_compare(Relation relation, const T* a, const T* b, int32_t* mask, int64_t count);

// y = condition ? a : b. A null a or b means `constant`.
template <typename T>
void scalar_select(const int32_t* condition, const T* a, const T* b, T constant, T* y,
                   int64_t count);
// y = mask ? x * scale : x * 0, so that dropped infinities and NaNs give NaN, as in torch.
template <typename T>
void scalar_masked_scale(const T* x, const int32_t* mask, T scale, T* y, int64_t count);

// mask[i] = 1 with probability `keep`, to 32 bits: 1 if number step 2^40 + i of the stream is below
// keep 2^32. Requires: count <= 2^40.
void draw_mask(const RandomStream& stream, uint64_t step, double keep, int32_t* mask,
               int64_t count);

// How a mask is drawn: element i is 1 if number 4 first_block + i of the stream is below threshold.
struct MaskDraw {
  static constexpr int64_t kWords = 4;  // numbers of a block
  MaskDraw(uint64_t step, double keep);
  uint64_t first_block, threshold;
};
// Elements [begin, end) of `mask`. Requires: begin is a multiple of MaskDraw::kWords.
void draw_elements(const RandomStream& stream, const MaskDraw& draw, int64_t begin, int64_t end,
                   int32_t* mask);

}  // namespace lockstep
