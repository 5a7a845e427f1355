// Vectors of elements added to the statistics: counts, moments, hash and exponent bytes of whole
// rows of 16, in one pass with the rounding. The sums equal measure_element's
// (emulation/block_pass.h) bit for bit. Included once per target.
#if defined(LOCKSTEP_MEASURE_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef LOCKSTEP_MEASURE_INL_H
#undef LOCKSTEP_MEASURE_INL_H
#else
#define LOCKSTEP_MEASURE_INL_H
#endif

#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <algorithm>
#include <bit>

#include "emulation/block_pass.h"
#include "emulation/hash.h"
#include "emulation/simd/exponent_histogram.h"
#include "emulation/simd/round-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lockstep {
namespace HWY_NAMESPACE {
#if LOCKSTEP_SIMD_TARGET
namespace hn = hwy::HWY_NAMESPACE;

using DD = hn::ScalableTag<double>;
using DHalf = hn::Half<DF>;
using VD = hn::Vec<DD>;
using DQ = hn::ScalableTag<uint64_t>;

constexpr int64_t kLanes = static_cast<int64_t>(hn::MaxLanes(DF()));
constexpr int64_t kRow = kReductionLanes;  // elements of one trip: all virtual lanes
constexpr int kVectors = static_cast<int>(kRow / kLanes);
constexpr int kDoubles = 2 * kVectors;  // double vectors holding one row

// The vectors behind one chunk's integer statistics; a chunk has 2^16 elements, so 32 bits hold any
// count. `to_zero` and `to_subnormal` are counted with what `finish` takes off again.
struct ChunkCounts {
  VU source_zero, zero_after, below_normal, inexact, nan, to_infinity, saturated;
  VU abs_max, abs_min_less_1;
  hn::Vec<DQ> hash_even, hash_odd;

  ChunkCounts() {
    const DU du;
    source_zero = zero_after = below_normal = inexact = nan = to_infinity = saturated = abs_max =
        hn::Zero(du);
    abs_min_less_1 = hn::Set(du, 0xffffffffu);
    hash_even = hash_odd = hn::Zero(DQ());
  }

  static HWY_INLINE VU plus(VU count, MU mask) {
    return hn::IfThenElse(mask, hn::Add(count, hn::Set(DU(), 1)), count);
  }

  // `largest`: of a block that has been counted.
  ExponentRange exponent_range(VU largest) const {
    const DU du;
    const uint32_t smallest = hn::GetLane(hn::MinOfLanes(du, abs_min_less_1)) + 1;
    return {static_cast<int>(smallest >> kFloatFraction),
            static_cast<int>(hn::GetLane(hn::MaxOfLanes(du, largest)) >> kFloatFraction)};
  }

  static uint64_t total(VU counts) {
    HWY_ALIGN uint32_t lanes[kLanes];
    hn::Store(counts, DU(), lanes);
    uint64_t sum = 0;
    for (const uint32_t lane : lanes) sum += lane;
    return sum;
  }

  void add_to(TensorStats& stats) const {
    HWY_ALIGN uint32_t lanes[kLanes];
    const uint64_t zeros = total(source_zero), zeros_after = total(zero_after);
    stats.source_zero += zeros;
    stats.to_zero += zeros_after - zeros;
    stats.to_subnormal += total(below_normal) - zeros_after;
    stats.inexact += total(inexact);
    stats.nan += total(nan);
    stats.to_infinity += total(to_infinity);
    stats.saturated += total(saturated);
    hn::Store(abs_max, DU(), lanes);
    const uint32_t largest = *std::max_element(lanes, lanes + kLanes);
    stats.abs_max = std::max<double>(stats.abs_max, std::bit_cast<float>(largest));
    hn::Store(abs_min_less_1, DU(), lanes);
    const uint32_t smallest = *std::min_element(lanes, lanes + kLanes);
    if (smallest < kInfinityBits - 1) {
      stats.abs_min_nonzero =
          std::min<double>(stats.abs_min_nonzero, std::bit_cast<float>(smallest + 1));
    }
    HWY_ALIGN uint64_t hashes[kLanes / 2];
    hn::Store(hn::Add(hash_even, hash_odd), DQ(), hashes);
    for (const uint64_t lane : hashes) stats.bits_hash += lane;
  }
};

HWY_INLINE void add_squares(VF x, VD* HWY_RESTRICT sums) {
  const DD dd;
  const DHalf dh;
  const VD low = hn::PromoteTo(dd, hn::LowerHalf(dh, x));
  const VD high = hn::PromoteTo(dd, hn::UpperHalf(dh, x));
  // The square of a float is exact in double, so the fused form rounds as multiply and add do.
  sums[0] = hn::MulAdd(low, low, sums[0]);
  sums[1] = hn::MulAdd(high, high, sums[1]);
}

HWY_INLINE void add_squared_difference(VF a, VF b, VD* HWY_RESTRICT sums) {
  const DD dd;
  const DHalf dh;
  const VD low =
      hn::Sub(hn::PromoteTo(dd, hn::LowerHalf(dh, a)), hn::PromoteTo(dd, hn::LowerHalf(dh, b)));
  const VD high =
      hn::Sub(hn::PromoteTo(dd, hn::UpperHalf(dh, a)), hn::PromoteTo(dd, hn::UpperHalf(dh, b)));
  sums[0] = hn::Add(sums[0], hn::Mul(low, low));
  sums[1] = hn::Add(sums[1], hn::Mul(high, high));
}

// hash_element in lanes; see emulation/hash.h.
HWY_INLINE void add_hash(VU bits, VU key, ChunkCounts& counts) {
  const DU du;
  const VU even = hn::Xor(bits, key);
  const VU odd = hn::BitCast(du, hn::ShiftRight<32>(hn::BitCast(DQ(), even)));
  counts.hash_even = hn::Add(counts.hash_even, hn::MulEven(even, even));
  counts.hash_odd = hn::Add(counts.hash_odd, hn::MulEven(odd, odd));
}

struct Block {
  const float* before;
  float* after;            // null: nothing is stored
  bool streamed;           // `after` is aligned and so large that it had better not fill the caches
  const uint32_t* random;  // of the block's elements; null unless rounding is stochastic
  uint8_t* exponents;      // of the block's elements, in any order; aligned
  int64_t rows;            // whole rows of 16
  uint64_t first;          // index of the block's first element
};

// The next block is on its way from memory while this one is worked on.
HWY_INLINE void prefetch_next_block(const float* at) {
  hwy::Prefetch(at + kReductionBlock);
}

HWY_INLINE void store_after(VU bits, const Block& block, int64_t at) {
  const DF df;
  const VF y = hn::BitCast(df, bits);
  if (block.streamed) {
    hn::Stream(y, df, block.after + at);
  } else {
    hn::StoreU(y, df, block.after + at);
  }
}

// Element i goes to virtual lane i mod 16.
struct LaneSums {
  VD squares[kDoubles], errors[kDoubles];
  LaneSums() {
    for (int v = 0; v < kDoubles; ++v) squares[v] = errors[v] = hn::Zero(DD());
  }
  void store(double* squares_out, double* errors_out) const {
    constexpr int64_t kDoubleLanes = kLanes / 2;
    for (int v = 0; v < kDoubles; ++v) {
      hn::StoreU(squares[v], DD(), squares_out + v * kDoubleLanes);
      hn::StoreU(errors[v], DD(), errors_out + v * kDoubleLanes);
    }
  }
};

// Rounds, stores and measures one vector, the v-th of its row, all but its exponents. Returns its
// magnitudes.
template <RoundPath kPath, bool kPlain>
HWY_INLINE VU measure_vector(const Block& block, int64_t at, int v, const VectorRounder& rounder,
                             VU max_finite, VU min_normal, VU key, ChunkCounts& counts,
                             LaneSums& sums) {
  const DF df;
  const DU du;
  const VU zero = hn::Zero(du), infinity = hn::Set(du, kInfinityBits);
  const VF x = hn::LoadU(df, block.before + at);
  const VU bits = hn::BitCast(du, x);
  const VU sign = hn::And(bits, hn::Set(du, kSignBit));
  const VU magnitude = hn::AndNot(hn::Set(du, kSignBit), bits);
  VU random = zero;
  if constexpr (kPath == RoundPath::kGeneric) {
    if (block.random != nullptr) random = hn::LoadU(du, block.random + at);
  }
  VU result = rounder.round_magnitude<kPath>(magnitude, sign, random);
  VU after_bits;
  if constexpr (kPlain) {
    after_bits = rounder.with_sign<kPath>(result, sign);
  } else {
    result = rounder.fix_specials<kPath>(magnitude, sign, result);
    const MU nan = less(infinity, result);
    after_bits = hn::IfThenElse(nan, result, rounder.with_sign<kPath>(result, sign));
  }
  const VF y = hn::BitCast(df, after_bits);
  if (block.after != nullptr) store_after(after_bits, block, at);
  prefetch_next_block(block.before + at);

  counts.source_zero = ChunkCounts::plus(counts.source_zero, hn::Eq(magnitude, zero));
  if constexpr (kPath == RoundPath::kIdentity) {
    counts.zero_after = counts.source_zero;
  } else {
    counts.zero_after = ChunkCounts::plus(counts.zero_after, hn::Eq(result, zero));
  }
  counts.below_normal = ChunkCounts::plus(counts.below_normal, less(result, min_normal));
  add_hash(after_bits, key, counts);
  const VU magnitude_less_1 = hn::Sub(magnitude, hn::Set(du, 1));

  if constexpr (kPlain) {
    if constexpr (kPath != RoundPath::kIdentity) {
      counts.inexact = ChunkCounts::plus(counts.inexact, hn::Ne(result, magnitude));
    }
    counts.abs_min_less_1 = hn::Min(counts.abs_min_less_1, magnitude_less_1);
    //
    if constexpr (kPath == RoundPath::kMagic || kPath == RoundPath::kInteger) {
      // To nearest, the error is a multiple of x's last place and not above |x|: a float.
//
    } else if constexpr (kPath == RoundPath::kGeneric) {
      add_squared_difference(y, x, sums.errors + 2 * v);
    }
  } else {
    const MU nan = less(infinity, magnitude);
    const MU finite = less(magnitude, infinity);
    const MU lost = hn::AndNot(less(result, infinity), finite);  // finite before, not after
    counts.nan = ChunkCounts::plus(counts.nan, nan);
    counts.inexact = ChunkCounts::plus(counts.inexact, hn::AndNot(nan, hn::Ne(result, magnitude)));
    counts.to_infinity = ChunkCounts::plus(counts.to_infinity, lost);
    counts.saturated = ChunkCounts::plus(
        counts.saturated,
        hn::And(hn::AndNot(nan, less(max_finite, magnitude)), hn::Eq(result, max_finite)));
    counts.abs_max = hn::Max(counts.abs_max, hn::IfThenZeroElse(nan, magnitude));
    counts.abs_min_less_1 = hn::Min(counts.abs_min_less_1,
                                    hn::Or(magnitude_less_1, hn::Not(hn::VecFromMask(du, finite))));
    const auto finite_f = hn::RebindMask(df, finite);
    const auto both_f = hn::RebindMask(df, hn::AndNot(lost, finite));
    add_squares(hn::IfThenElseZero(finite_f, x), sums.squares + 2 * v);
    add_squared_difference(hn::IfThenElseZero(both_f, y), hn::IfThenElseZero(both_f, x),
                           sums.errors + 2 * v);
  }
  return magnitude;
}

// The exponent bytes of four vectors in one: bits 30 to 23 of each lane, shifted to its byte.
constexpr int kTrip = 4;
HWY_INLINE VU pack_exponents(const VU (&magnitude)[kTrip]) {
  const DU du;
  constexpr uint32_t kByte1 = 0xff00, kByte3 = 0xff000000, kLowBytes = 0xffff;
  const VU low = hn::IfVecThenElse(hn::Set(du, kByte1), hn::ShiftRight<15>(magnitude[1]),
                                   hn::ShiftRight<kFloatFraction>(magnitude[0]));
  const VU high = hn::IfVecThenElse(hn::Set(du, kByte3), hn::Add(magnitude[3], magnitude[3]),
                                    hn::ShiftRight<7>(magnitude[2]));
  return hn::IfVecThenElse(hn::Set(du, kLowBytes), low, high);
}

// Adds the block's rows to `chunk` and writes its virtual lanes. Block and rounder are copies, so
// that the compiler need not expect a store to change them. kPlain: no magnitude is beyond
// max_finite, and the caller sees to abs_max.
template <RoundPath kPath, bool kPlain>
void measure_rows(Block block, VectorRounder rounder, const QuantizePlan& plan, ChunkCounts& chunk,
                  double* squares_out, double* errors_out) {
  const DU du;
  const VU max_finite = hn::Set(du, plan.max_finite), min_normal = hn::Set(du, plan.min_normal);
  VU key = hn::Add(hn::Set(du, hash_key(block.first)),
                   hn::Mul(hn::Iota(du, 0), hn::Set(du, kHashIndexLow)));
  const VU key_step = hn::Set(du, kHashIndexLow * static_cast<uint32_t>(kLanes));
  ChunkCounts counts = chunk;
  LaneSums sums;
  const int64_t end = block.rows * kRow;
  int64_t at = 0;
  for (; at + kTrip * kLanes <= end; at += kTrip * kLanes) {
    VU magnitudes[kTrip];
#pragma GCC unroll 4
    for (int t = 0; t < kTrip; ++t) {
      magnitudes[t] = measure_vector<kPath, kPlain>(block, at + t * kLanes, t % kVectors, rounder,
                                                    max_finite, min_normal, key, counts, sums);
      key = hn::Add(key, key_step);
    }
    hn::Store(pack_exponents(magnitudes), du, reinterpret_cast<uint32_t*>(block.exponents + at));
  }
  for (; at < end; at += kRow) {
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
      const VU magnitude = measure_vector<kPath, kPlain>(block, at + v * kLanes, v, rounder,
                                                         max_finite, min_normal, key, counts, sums);
      key = hn::Add(key, key_step);
      const hn::Rebind<uint8_t, DU> d8;
      hn::StoreU(hn::TruncateTo(d8, hn::ShiftRight<kFloatFraction>(magnitude)), d8,
                 block.exponents + at + v * kLanes);
    }
  }
  chunk = counts;
  sums.store(squares_out, errors_out);
}

// The largest magnitude in each lane.
HWY_INLINE VU largest_magnitudes(const float* values, int64_t rows) {
  const DU du;
  VU largest = hn::Zero(du);
#pragma GCC unroll 4
  for (int64_t at = 0; at < rows * kRow; at += kLanes) {
    const VU bits = hn::BitCast(du, hn::LoadU(DF(), values + at));
    largest = hn::Max(largest, hn::AndNot(hn::Set(du, kSignBit), bits));
  }
  return largest;
}
HWY_INLINE bool all_within(VU largest, uint32_t limit) {
  const DU du;
  return hn::AllFalse(du, less(hn::Set(du, limit), largest));
}

#endif  // LOCKSTEP_SIMD_TARGET
}  // namespace HWY_NAMESPACE
}  // namespace lockstep
HWY_AFTER_NAMESPACE();
#endif  // per-target include guard
