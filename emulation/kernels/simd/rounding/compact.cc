// Whole vectors here; the scalar loops take what is left of a range. Both instruction sets convert
// FP16 themselves.
#include "emulation/kernels/simd/rounding/compact.h"

#include <algorithm>

#include "emulation/kernels/scalar/elements/round_state.h"
#include "emulation/kernels/scalar/rounding/compact.h"
#include "emulation/kernels/simd/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "emulation/kernels/simd/rounding/compact.cc"
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace lockstep {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
#if LOCKSTEP_SIMD_TARGET

using DF = hn::ScalableTag<float>;
using DI = hn::ScalableTag<int32_t>;
using DU = hn::ScalableTag<uint32_t>;
using DU16 = hn::Rebind<uint16_t, DF>;
using DF16 = hn::Rebind<hwy::float16_t, DF>;
constexpr int64_t kLanes = static_cast<int64_t>(hn::MaxLanes(DF()));
constexpr int kHalfBits = 16;
constexpr int64_t kByteBits = 8;

template <CompactForm kForm>
HWY_INLINE hn::Vec<DU16> to_code(hn::Vec<DF> x) {
  if constexpr (kForm == CompactForm::kFp16) {
    return hn::BitCast(DU16(), hn::DemoteTo(DF16(), x));
  } else {
    const auto upper = hn::ShiftRight<kHalfBits>(hn::BitCast(DU(), x));
    return hn::DemoteTo(DU16(), hn::BitCast(DI(), upper));
  }
}

template <CompactForm kForm>
HWY_INLINE hn::Vec<DF> from_code(hn::Vec<DU16> code) {
  if constexpr (kForm == CompactForm::kFp16) {
    return hn::PromoteTo(DF(), hn::BitCast(DF16(), code));
  } else {
    return hn::BitCast(DF(), hn::ShiftLeft<kHalfBits>(hn::PromoteTo(DU(), code)));
  }
}

// Return how many elements are done: whole vectors. Nothing reads the codes for a while, so their
// stores bypass the caches.
template <CompactForm kForm>
int64_t vectors_to_codes(const float* from, int64_t count, uint16_t* to) {
  int64_t i = 0;
  if (reinterpret_cast<uintptr_t>(to) % (kLanes * sizeof(uint16_t)) == 0) {
    for (; i + kLanes <= count; i += kLanes) {
      hn::Stream(to_code<kForm>(hn::LoadU(DF(), from + i)), DU16(), to + i);
    }
    hwy::FlushStream();
  }
  for (; i + kLanes <= count; i += kLanes) {
    hn::StoreU(to_code<kForm>(hn::LoadU(DF(), from + i)), DU16(), to + i);
  }
  return i;
}
template <CompactForm kForm>
int64_t vectors_from_codes(const uint16_t* from, int64_t count, float* to) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    hn::StoreU(from_code<kForm>(hn::LoadU(DU16(), from + i)), DF(), to + i);
  }
  return i;
}

void to_codes(CompactForm form, const float* from, int64_t count, uint16_t* to) {
  const int64_t done = form == CompactForm::kFp16
                           ? vectors_to_codes<CompactForm::kFp16>(from, count, to)
                           : vectors_to_codes<CompactForm::kTopHalf>(from, count, to);
  scalar_to_codes(form, from + done, count - done, to + done);
}

void from_codes(CompactForm form, const uint16_t* from, int64_t count, float* to) {
  const int64_t done = form == CompactForm::kFp16
                           ? vectors_from_codes<CompactForm::kFp16>(from, count, to)
                           : vectors_from_codes<CompactForm::kTopHalf>(from, count, to);
  scalar_from_codes(form, from + done, count - done, to + done);
}

void to_bits(const int32_t* from, int64_t count, uint8_t* to) {
  const DI di;
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    uint8_t bytes[kByteBits];  // StoreMaskBits may write 8 of them, LoadMaskBits reads them
    hn::StoreMaskBits(di, hn::Ne(hn::LoadU(di, from + i), hn::Zero(di)), bytes);
    std::copy_n(bytes, kLanes / kByteBits, to + i / kByteBits);
  }
  scalar_to_bits(from + i, count - i, to + i / kByteBits);
}

void from_bits(const uint8_t* from, int64_t count, int32_t* to) {
  const DI di;
  const auto ones = hn::Set(di, 1);
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    uint8_t bytes[kByteBits] = {};
    std::copy_n(from + i / kByteBits, kLanes / kByteBits, bytes);
    hn::StoreU(hn::IfThenElseZero(hn::LoadMaskBits(di, bytes), ones), di, to + i);
  }
  scalar_from_bits(from + i / kByteBits, count - i, to + i);
}

#endif  // LOCKSTEP_SIMD_TARGET
}  // namespace HWY_NAMESPACE
}  // namespace lockstep
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lockstep {

void use_simd_compact(KernelSet& set, SimdTarget target) {
  if (target == SimdTarget::kAvx2) {
    set.compact = {compact<N_AVX2::to_codes>, expand<N_AVX2::from_codes>,
                   compact_mask<N_AVX2::to_bits>, expand_mask<N_AVX2::from_bits>, round_state};
  } else {
    set.compact = {compact<N_AVX3::to_codes>, expand<N_AVX3::from_codes>,
                   compact_mask<N_AVX3::to_bits>, expand_mask<N_AVX3::from_bits>, round_state};
  }
}

}  // namespace lockstep
#endif  // HWY_ONCE
