// All 256 bins in bit planes, eight vectors of bytes at a time (a group):
//
//   1. eight vectors are transposed bit by bit: plane j holds bit j of every byte. Three rounds of
//      exchanges do this; the resulting order of the elements does not matter to a histogram.
//   2. 16 masks of the low four planes: mask l has a one where a byte's low nibble is l.
//   3. for each high nibble that occurs: its mask AND each low mask; the number of
//      ones in the result is a bin.
//
// Loops over vectors are unrolled, so that the arrays of vectors are kept in registers.
#include "emulation/kernels/simd/rounding/exponent_histogram.h"

// Only this file is also compiled for Highway's AVX3_DL, which counts ones in one instruction.
#define HWY_WANT_AVX3_DL
#include "emulation/kernels/simd/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "emulation/kernels/simd/rounding/exponent_histogram.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "emulation/kernels/simd/rounding/bits-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lockstep {
namespace HWY_NAMESPACE {
#if LOCKSTEP_SIMD_TARGET || HWY_TARGET == HWY_AVX3_DL
namespace hn = hwy::HWY_NAMESPACE;

using D8 = hn::ScalableTag<uint8_t>;
using D64 = hn::ScalableTag<uint64_t>;
using V8 = hn::Vec<D8>;
using V64 = hn::Vec<D64>;

constexpr int kPlanes = 8, kNibbleBits = 4;
constexpr int64_t kVectorBytes = static_cast<int64_t>(hn::MaxLanes(D8()));
constexpr int64_t kGroupBytes = kPlanes * kVectorBytes;
constexpr int64_t kGroups = kReductionBlock / kGroupBytes;
// Every group adds at most 8 ones to a byte's counter.
static_assert(kGroups * 8 < 256);

// Exchanges the high half of each 2 kShift bits of `a` with the low half of those of `b`.
template <int kShift>
HWY_INLINE void exchange(V64& a, V64& b, V64 low_half) {
  const V64 low = select_bits(low_half, a, hn::ShiftLeft<kShift>(b));
  b = select_bits(low_half, hn::ShiftRight<kShift>(a), b);
  a = low;
}

HWY_INLINE void transpose(V64 (&v)[kPlanes]) {
  const D64 d;
  const V64 nibbles = hn::Set(d, 0x0f0f0f0f0f0f0f0full), pairs = hn::Set(d, 0x3333333333333333ull);
  const V64 bits = hn::Set(d, 0x5555555555555555ull);
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) exchange<4>(v[i], v[i + 4], nibbles);
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    exchange<2>(v[i], v[i + 2], pairs);
    exchange<2>(v[i + 4], v[i + 6], pairs);
  }
#pragma GCC unroll 4
  for (int i = 0; i < kPlanes; i += 2) exchange<1>(v[i], v[i + 1], bits);
}

// Masks of the four values of two planes.
HWY_INLINE void pair_masks(V64 bit0, V64 bit1, V64 (&masks)[4]) {
  masks[0] = hn::AndNot(bit0, hn::Not(bit1));
  masks[1] = hn::AndNot(bit1, bit0);
  masks[2] = hn::AndNot(bit0, bit1);
  masks[3] = hn::And(bit0, bit1);
}

uint64_t count_sliced(const uint8_t* exponents, ExponentRange range, SlicedBins& bins) {
  const D8 d8;
  const D64 d;
  V64 low_masks[kNibbleBins][kGroups], high_planes[kNibbleBits][kGroups];
  for (int64_t g = 0; g < kGroups; ++g) {
    V64 v[kPlanes];
#pragma GCC unroll 8
    for (int p = 0; p < kPlanes; ++p) {
      v[p] = hn::BitCast(d, hn::Load(d8, exponents + g * kGroupBytes + p * kVectorBytes));
    }
    transpose(v);
    V64 low[4], high[4];
    pair_masks(v[0], v[1], low);
    pair_masks(v[2], v[3], high);
#pragma GCC unroll 16
    for (int l = 0; l < kNibbleBins; ++l) low_masks[l][g] = hn::And(low[l % 4], high[l / 4]);
#pragma GCC unroll 4
    for (int p = 0; p < kNibbleBits; ++p) high_planes[p][g] = v[kNibbleBits + p];
  }
  uint64_t zeros = 0;
  const int first = range.low >> kNibbleBits, last = range.high >> kNibbleBits;
  for (int h = 0; h <= last; h = h < first ? first : h + 1) {
    V64 flip[kNibbleBits], masks[kGroups];
#pragma GCC unroll 4
    for (int p = 0; p < kNibbleBits; ++p) {
      flip[p] = hn::Set(d, (h >> p & 1) != 0 ? 0 : ~uint64_t{0});
    }
    V64 any = hn::Zero(d);
#pragma GCC unroll 16
    for (int64_t g = 0; g < kGroups; ++g) {
      masks[g] = hn::And(
          hn::And(hn::Xor(high_planes[0][g], flip[0]), hn::Xor(high_planes[1][g], flip[1])),
          hn::And(hn::Xor(high_planes[2][g], flip[2]), hn::Xor(high_planes[3][g], flip[3])));
      any = hn::Or(any, masks[g]);
    }
    if (hn::AllTrue(d, hn::Eq(any, hn::Zero(d)))) continue;
    SlicedBin* nibble_bins = bins.bin + h * kNibbleBins;
    if ((bins.touched >> h & 1) == 0) {
      for (int l = 0; l < kNibbleBins; ++l) nibble_bins[l] = SlicedBin();
      bins.touched |= 1u << h;
    }
    // Only bytes of the range occur, and zero, the only byte below it.
    const int low = h == first ? range.low % kNibbleBins : 0;
    int high = h == last ? range.high % kNibbleBins : kNibbleBins - 1;
    if (h < first) high = 0;
    for (int l = h == 0 ? 0 : low; l <= high; l = l < low ? low : l + 1) {
      V8 ones[2] = {hn::Zero(d8), hn::Zero(d8)};
#pragma GCC unroll 16
      for (int64_t g = 0; g < kGroups; ++g) {
        const V8 both = hn::BitCast(d8, hn::And(masks[g], low_masks[l][g]));
        ones[g % 2] = hn::Add(ones[g % 2], hn::PopulationCount(both));
      }
      uint64_t* lanes = nibble_bins[l].lane;
      const V64 sums = hn::SumsOf8(hn::Add(ones[0], ones[1]));
      hn::Store(hn::Add(hn::Load(d, lanes), sums), d, lanes);
      if (h == 0 && l == 0) zeros = hn::GetLane(hn::SumOfLanes(d, sums));
    }
  }
  return zeros;
}

#endif  // LOCKSTEP_SIMD_TARGET || HWY_TARGET == HWY_AVX3_DL
}  // namespace HWY_NAMESPACE
}  // namespace lockstep
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lockstep {

uint64_t avx2_count_sliced(const uint8_t* exponents, ExponentRange range, SlicedBins& bins) {
  return N_AVX2::count_sliced(exponents, range, bins);
}
uint64_t avx512_count_sliced(const uint8_t* exponents, ExponentRange range, SlicedBins& bins) {
  static const bool counts_ones = (hwy::SupportedTargets() & HWY_AVX3_DL) != 0;
  return (counts_ones ? N_AVX3_DL::count_sliced : N_AVX3::count_sliced)(exponents, range, bins);
}

}  // namespace lockstep
#endif  // HWY_ONCE
