// See select.h.
#include "emulation/kernels/scalar/elements/select.h"

#include <algorithm>
#include <cmath>

#include "emulation/accumulator/fast_round.h"
#include "src/core/chunks.h"

namespace lockstep {
namespace {

template <typename T>
bool compares(Relation relation, T a, T b) {
  switch (relation) {
    case Relation::kGreater:
      return a > b;
    case Relation::kGreaterEqual:
      return a >= b;
    case Relation::kLess:
      return a < b;
    case Relation::kLessEqual:
      return a <= b;
    case Relation::kEqual:
      return a == b;
    case Relation::kNotEqual:
      return a != b;
  }
  return false;
}

}  // namespace

template <typename T>
void scalar_compare(Relation relation, const T* a, const T* b, int32_t* mask, int64_t count) {
  parallel_chunks(count, kElementGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) mask[i] = compares(relation, a[i], b[i]) ? 1 : 0;
  });
}

template <typename T>
void scalar_select(const int32_t* condition, const T* a, const T* b, T constant, T* y,
                   int64_t count) {
  parallel_chunks(count, kElementGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const T* from = condition[i] != 0 ? a : b;
      y[i] = canonical_nan(from != nullptr ? from[i] : constant);
    }
  });
}

template <typename T>
void scalar_masked_scale(const T* x, const int32_t* mask, T scale, T* y, int64_t count) {
  parallel_chunks(count, kElementGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) y[i] = canonical_nan(x[i] * (mask[i] ? scale : T(0)));
  });
}

MaskDraw::MaskDraw(uint64_t step, double keep) {
  constexpr int kElementBits = 40;
  first_block = (step << kElementBits) / static_cast<uint64_t>(kWords);
  threshold = static_cast<uint64_t>(std::nearbyint(std::ldexp(keep, 32)));
}

void draw_elements(const RandomStream& stream, const MaskDraw& draw, int64_t begin, int64_t end,
                   int32_t* mask) {
  for (int64_t at = begin; at < end; at += MaskDraw::kWords) {
    const auto words = stream.four(draw.first_block + static_cast<uint64_t>(at / MaskDraw::kWords));
    const int64_t n = std::min(MaskDraw::kWords, end - at);
    for (int64_t i = 0; i < n; ++i) mask[at + i] = words[static_cast<size_t>(i)] < draw.threshold;
  }
}

void draw_mask(const RandomStream& stream, uint64_t step, double keep, int32_t* mask,
               int64_t count) {
  const MaskDraw draw(step, keep);
  parallel_chunks(count, kElementGrain, [&](int64_t begin, int64_t end) {
    draw_elements(stream, draw, begin, end, mask);
  });
}

#define LOCKSTEP_INSTANTIATE(T)                                                    \
  template void scalar_compare(Relation, const T*, const T*, int32_t*, int64_t);   \
  template void scalar_select(const int32_t*, const T*, const T*, T, T*, int64_t); \
  template void scalar_masked_scale(const T*, const int32_t*, T, T*, int64_t);
LOCKSTEP_INSTANTIATE(float)
LOCKSTEP_INSTANTIATE(double)
#undef LOCKSTEP_INSTANTIATE

}  // namespace lockstep
