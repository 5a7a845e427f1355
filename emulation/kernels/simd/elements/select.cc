// Whole vectors here; the scalar kernels take what is left of a range.
#include "emulation/kernels/simd/elements/select.h"

#include <cmath>

#include "emulation/kernels/scalar/elements/select.h"
#include "emulation/kernels/simd/targets.h"
#include "src/core/chunks.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "emulation/kernels/simd/elements/select.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "emulation/kernels/simd/rounding/stochastic-inl.h"
#include "emulation/kernels/simd/vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lockstep {
namespace HWY_NAMESPACE {
#if LOCKSTEP_SIMD_TARGET

// Which lanes of a vector of T have a mask that is not 0.
template <typename T>
HWY_INLINE auto chosen(const int32_t* mask) {
  const hn::ScalableTag<T> d;
  const hn::RebindToSigned<decltype(d)> di;
  const hn::Rebind<int32_t, decltype(d)> d32;
  const auto flags = hn::LoadU(d32, mask);
  if constexpr (sizeof(T) == sizeof(int32_t)) {
    return hn::RebindMask(d, hn::Ne(flags, hn::Zero(di)));
  } else {
    return hn::RebindMask(d, hn::Ne(hn::PromoteTo(di, flags), hn::Zero(di)));
  }
}

template <typename T>
void select(const int32_t* condition, const T* a, const T* b, T constant, T* y, int64_t count) {
  const hn::ScalableTag<T> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto instead = hn::Set(d, constant);
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const auto u = a != nullptr ? hn::LoadU(d, a + i) : instead;
    const auto v = b != nullptr ? hn::LoadU(d, b + i) : instead;
    hn::StoreU(canonical(d, hn::IfThenElse(chosen<T>(condition + i), u, v)), d, y + i);
  }
  scalar_select(condition + i, a != nullptr ? a + i : a, b != nullptr ? b + i : b, constant, y + i,
                count - i);
}

template <typename T>
void masked_scale(const T* x, const int32_t* mask, T scale, T* y, int64_t count) {
  const hn::ScalableTag<T> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto factor = hn::Set(d, scale);
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const auto by = hn::IfThenElseZero(chosen<T>(mask + i), factor);
    hn::StoreU(canonical(d, hn::Mul(hn::LoadU(d, x + i), by)), d, y + i);
  }
  scalar_masked_scale(x + i, mask + i, scale, y + i, count - i);
}

// mask[i] = 1 if number i of the blocks from `first` is below `threshold`, else 0. Returns how many
// elements it wrote, of `count`: those of whole vectors.
int64_t draw_mask_vectors(const RandomStream& stream, uint64_t first, uint32_t threshold,
                          int32_t* mask, int64_t count) {
  const hn::ScalableTag<uint32_t> du;
  const hn::ScalableTag<int32_t> di;
  const auto lanes = static_cast<int64_t>(hn::Lanes(du));
  const PhiloxKeys rounds(stream.key());
  const std::array<uint32_t, 2> nonce = stream.nonce();
  // Signed comparisons, both sides moved down by 2^31.
  const auto moved = hn::Set(du, 0x80000000u);
  const auto limit = hn::BitCast(di, hn::Xor(hn::Set(du, threshold), moved));
  const auto one = hn::Set(di, 1);
  int64_t i = 0;
  for (; i + 4 * lanes <= count; i += 4 * lanes) {
    const auto below = [&](auto word) HWY_ATTR {
      return hn::IfThenElseZero(hn::Lt(hn::BitCast(di, hn::Xor(word, moved)), limit), one);
    };
    philox_words(rounds, nonce, first + static_cast<uint64_t>(i / 4),
                 [&](auto w0, auto w1, auto w2, auto w3) HWY_ATTR {
                   hn::StoreInterleaved4(below(w0), below(w1), below(w2), below(w3), di, mask + i);
                 });
  }
  return i;
}

#endif  // LOCKSTEP_SIMD_TARGET
}  // namespace HWY_NAMESPACE
}  // namespace lockstep
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lockstep {
namespace {

template <typename T, void (*kSelect)(const int32_t*, const T*, const T*, T, T*, int64_t),
          void (*kMaskedScale)(const T*, const int32_t*, T, T*, int64_t)>
void use_choices(Kernels<T>& kernels) {
  kernels.select = [](const int32_t* condition, const T* a, const T* b, T constant, T* y,
                      int64_t count) {
    parallel_chunks(count, kElementGrain, [=](int64_t begin, int64_t end) {
      kSelect(condition + begin, a != nullptr ? a + begin : a, b != nullptr ? b + begin : b,
              constant, y + begin, end - begin);
    });
  };
  kernels.masked_scale = [](const T* x, const int32_t* mask, T scale, T* y, int64_t count) {
    parallel_chunks(count, kElementGrain, [=](int64_t begin, int64_t end) {
      kMaskedScale(x + begin, mask + begin, scale, y + begin, end - begin);
    });
  };
}

template <int64_t (*kVectors)(const RandomStream&, uint64_t, uint32_t, int32_t*, int64_t)>
void draw_mask_with(const RandomStream& stream, uint64_t step, double keep, int32_t* mask,
                    int64_t count) {
  const MaskDraw draw(step, keep);
  const auto threshold = static_cast<uint32_t>(draw.threshold);
  const bool is_whole = threshold == draw.threshold;  // all numbers are below 2^32
  parallel_chunks(count, kElementGrain, [&](int64_t begin, int64_t end) {
    const uint64_t first = draw.first_block + static_cast<uint64_t>(begin / MaskDraw::kWords);
    if (is_whole) begin += kVectors(stream, first, threshold, mask + begin, end - begin);
    draw_elements(stream, draw, begin, end, mask);
  });
}

}  // namespace

void use_simd_select(KernelSet& set, SimdTarget target) {
  if (target == SimdTarget::kAvx2) {
    use_choices<float, N_AVX2::select<float>, N_AVX2::masked_scale<float>>(set.f32);
    use_choices<double, N_AVX2::select<double>, N_AVX2::masked_scale<double>>(set.f64);
    set.i32.draw_mask = draw_mask_with<N_AVX2::draw_mask_vectors>;
  } else {
    use_choices<float, N_AVX3::select<float>, N_AVX3::masked_scale<float>>(set.f32);
    use_choices<double, N_AVX3::select<double>, N_AVX3::masked_scale<double>>(set.f64);
    set.i32.draw_mask = draw_mask_with<N_AVX3::draw_mask_vectors>;
  }
}

}  // namespace lockstep
#endif  // HWY_ONCE
