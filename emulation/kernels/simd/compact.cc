// Both instruction sets convert FP16 themselves.
#include "emulation/kernels/simd/compact.h"

#include <algorithm>

#include "emulation/kernels/simd/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "emulation/kernels/simd/compact.cc"
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
constexpr int64_t kFloats = static_cast<int64_t>(hn::MaxLanes(DF()));
constexpr int kHalfBits = 16;

template <CompactForm kForm>
HWY_INLINE hn::Vec<DU16> to_half(hn::Vec<DF> x) {
  if constexpr (kForm == CompactForm::kFp16) {
    return hn::BitCast(DU16(), hn::DemoteTo(DF16(), x));
  } else {
    const auto upper = hn::ShiftRight<kHalfBits>(hn::BitCast(DU(), x));
    return hn::DemoteTo(DU16(), hn::BitCast(DI(), upper));
  }
}

template <CompactForm kForm>
HWY_INLINE hn::Vec<DF> to_float(hn::Vec<DU16> half) {
  if constexpr (kForm == CompactForm::kFp16) {
    return hn::PromoteTo(DF(), hn::BitCast(DF16(), half));
  } else {
    return hn::BitCast(DF(), hn::ShiftLeft<kHalfBits>(hn::PromoteTo(DU(), half)));
  }
}

template <CompactForm kForm>
void compact_all(const float* from, int64_t count, uint16_t* to) {
  const int64_t whole = count / kFloats * kFloats;
  for (int64_t i = 0; i < whole; i += kFloats) {
    hn::StoreU(to_half<kForm>(hn::LoadU(DF(), from + i)), DU16(), to + i);
  }
  float rest[kFloats] = {};
  uint16_t halves[kFloats];
  std::copy(from + whole, from + count, rest);
  hn::StoreU(to_half<kForm>(hn::LoadU(DF(), rest)), DU16(), halves);
  std::copy_n(halves, count - whole, to + whole);
}

template <CompactForm kForm>
void expand_all(const uint16_t* from, int64_t count, float* to) {
  const int64_t whole = count / kFloats * kFloats;
  for (int64_t i = 0; i < whole; i += kFloats) {
    hn::StoreU(to_float<kForm>(hn::LoadU(DU16(), from + i)), DF(), to + i);
  }
  uint16_t rest[kFloats] = {};
  float floats[kFloats];
  std::copy(from + whole, from + count, rest);
  hn::StoreU(to_float<kForm>(hn::LoadU(DU16(), rest)), DF(), floats);
  std::copy_n(floats, count - whole, to + whole);
}

void compact_floats(CompactForm form, const float* from, int64_t count, uint16_t* to) {
  form == CompactForm::kFp16 ? compact_all<CompactForm::kFp16>(from, count, to)
                             : compact_all<CompactForm::kTopHalf>(from, count, to);
}

void expand_floats(CompactForm form, const uint16_t* from, int64_t count, float* to) {
  form == CompactForm::kFp16 ? expand_all<CompactForm::kFp16>(from, count, to)
                             : expand_all<CompactForm::kTopHalf>(from, count, to);
}

// The first number is in the lowest bit of the first byte.
constexpr int64_t kByteBits = 8;

void compact_bits(const int32_t* from, int64_t count, uint8_t* to) {
  const DI di;
  const auto is_set = [&](hn::Vec<DI> x) { return hn::Ne(x, hn::Zero(di)); };
  const int64_t whole = count / kFloats * kFloats;
  for (int64_t i = 0; i < whole; i += kFloats) {
    hn::StoreMaskBits(di, is_set(hn::LoadU(di, from + i)), to + i / kByteBits);
  }
  if (whole == count) return;
  int32_t rest[kFloats] = {};
  uint8_t bytes[kFloats / kByteBits];
  std::copy(from + whole, from + count, rest);
  hn::StoreMaskBits(di, is_set(hn::LoadU(di, rest)), bytes);
  std::copy_n(bytes, (count - whole + kByteBits - 1) / kByteBits, to + whole / kByteBits);
}

void expand_bits(const uint8_t* from, int64_t count, int32_t* to) {
  const DI di;
  const auto ones = hn::Set(di, 1);
  const int64_t whole = count / kFloats * kFloats;
  for (int64_t i = 0; i < whole; i += kFloats) {
    // LoadMaskBits reads 8 bytes at once.
    uint8_t bytes[kByteBits] = {};
    std::copy_n(from + i / kByteBits, kFloats / kByteBits, bytes);
    hn::StoreU(hn::IfThenElseZero(hn::LoadMaskBits(di, bytes), ones), di, to + i);
  }
  for (int64_t i = whole; i < count; ++i) to[i] = from[i / kByteBits] >> i % kByteBits & 1;
}

inline constexpr CompactFunctions kFunctions = {compact_floats, expand_floats, compact_bits,
                                                expand_bits};

#endif  // LOCKSTEP_SIMD_TARGET
}  // namespace HWY_NAMESPACE
}  // namespace lockstep
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lockstep {

const CompactFunctions& avx2_compact_functions() {
  return N_AVX2::kFunctions;
}
const CompactFunctions& avx512_compact_functions() {
  return N_AVX3::kFunctions;
}

}  // namespace lockstep
#endif  // HWY_ONCE
