// Adds vectors of elements to the statistics: counts, moments, hash and exponent bytes of whole
// rows of 16, in one pass with the rounding. The sums equal those of LaneSums
// (emulation/kernels/element_stats.h) bit for bit. Included once per target.
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

#include "emulation/kernels/block_pass.h"
#include "emulation/kernels/simd/rounding/bits-inl.h"
#include "emulation/kernels/simd/rounding/exponent_histogram.h"
#include "emulation/kernels/simd/rounding/round-inl.h"
#include "emulation/stats/hash.h"

HWY_BEFORE_NAMESPACE();
namespace lockstep {
namespace HWY_NAMESPACE {
#if LOCKSTEP_SIMD_TARGET
namespace hn = hwy::HWY_NAMESPACE;

using DD = hn::ScalableTag<double>;
using DHalf = hn::Half<DF>;
using VD = hn::Vec<DD>;
using DQ = hn::ScalableTag<uint64_t>;
using VQ = hn::Vec<DQ>;

constexpr int64_t kLanes = static_cast<int64_t>(hn::MaxLanes(DF()));
constexpr int64_t kRow = kReductionLanes;  // elements of one trip: all virtual lanes
constexpr int64_t kBlockRows = kReductionBlock / kRow;
constexpr int kVectors = static_cast<int>(kRow / kLanes);

constexpr int kDoubles = 2 * kVectors;  // double vectors holding one row

// Squares of hash_element, by element of a row; hash_total does the rest.
struct HashSums {
  VQ even[kVectors], odd[kVectors];

  HashSums() {
    for (int v = 0; v < kVectors; ++v) even[v] = odd[v] = hn::Zero(DQ());
  }
  // bits: the v-th vector of the row.
  HWY_INLINE void add(VU bits, uint32_t row_key, int v) {
    const DU du;
    const VU low = hn::Xor(bits, hn::Set(du, row_key));
    const VU high = hn::BitCast(du, hn::ShiftRight<32>(hn::BitCast(DQ(), low)));
    even[v] = hn::Add(even[v], hn::MulEven(low, low));
    odd[v] = hn::Add(odd[v], hn::MulEven(high, high));
  }
  uint64_t total() const {
    uint64_t sum = 0;
    for (int v = 0; v < kVectors; ++v) {
      HWY_ALIGN uint64_t evens[kLanes / 2], odds[kLanes / 2];
      hn::Store(even[v], DQ(), evens);
      hn::Store(odd[v], DQ(), odds);
      for (int64_t l = 0; l < kLanes / 2; ++l) {
        sum += evens[l] * hash_factor(static_cast<uint64_t>(v * kLanes + 2 * l));
        sum += odds[l] * hash_factor(static_cast<uint64_t>(v * kLanes + 2 * l + 1));
      }
    }
    return sum;
  }
};

// The extreme magnitudes of some floats, lane by lane; in "less 1" a zero is the largest number.
struct BlockLook {
  VU largest, smallest_less_1;

  BlockLook() : largest(hn::Zero(DU())), smallest_less_1(hn::Set(DU(), 0xffffffffu)) {}
  HWY_INLINE void add(const float* values) {
    const DU du;
    const VU bits = hn::BitCast(du, hn::LoadU(DF(), values));
    const VU magnitude = hn::AndNot(hn::Set(du, kSignBit), bits);
    largest = hn::Max(largest, magnitude);
    smallest_less_1 = hn::Min(smallest_less_1, hn::Sub(magnitude, hn::Set(du, 1)));
  }
  void add_rows(const float* values, int64_t rows) {
    BlockLook look = *this;
#pragma GCC unroll 4
    for (int64_t at = 0; at < rows * kRow; at += kLanes) look.add(values + at);
    *this = look;
  }
  uint32_t largest_bits() const {
    return hn::GetLane(hn::MaxOfLanes(DU(), largest));
  }
  // The smallest nonzero magnitude, as bits; 0 if there is none.
  uint32_t smallest_bits() const {
    return hn::GetLane(hn::MinOfLanes(DU(), smallest_less_1)) + 1;
  }
};

// The vectors that hold one chunk's integer statistics. A chunk has 2^16 elements, so 32 bits hold
// any count. `to_zero` and `to_subnormal` also count what `finish` subtracts again.
struct ChunkCounts {
  VU source_zero, zero_after, below_normal, inexact, nan, to_infinity, saturated;
  VU abs_max, abs_min_less_1;
  HashSums hash;

  ChunkCounts() {
    const DU du;
    source_zero = zero_after = below_normal = inexact = nan = to_infinity = saturated = abs_max =
        hn::Zero(du);
    abs_min_less_1 = hn::Set(du, 0xffffffffu);
  }

  // One more where the mask is set.
  static HWY_INLINE VU plus(VU count, MU mask) {
    return hn::IfThenElse(mask, hn::Add(count, hn::Set(DU(), 1)), count);
  }

  // Adds the extremes of a block without infinities or NaN.
  void add_extremes(const BlockLook& look) {
    abs_max = hn::Max(abs_max, look.largest);
    abs_min_less_1 = hn::Min(abs_min_less_1, look.smallest_less_1);
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
    stats.bits_hash += hash.total();
  }
};

HWY_INLINE void add_squares(VF x, VD* HWY_RESTRICT sums) {
  const DD dd;
  const DHalf dh;
  const VD low = hn::PromoteTo(dd, hn::LowerHalf(dh, x));
  const VD high = hn::PromoteTo(dd, hn::UpperHalf(dh, x));
  // The square of a float is exact in double, so the fused form rounds like multiply and add.
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

struct Block {
  const float* before;
  const float* ahead;      // scanned in the same pass: the next block; without one, this block
  float* after;            // null: nothing is stored
  bool streamed;           // `after` is aligned and too large for the caches
  const uint32_t* random;  // of the block's elements; null unless rounding is stochastic
  uint8_t* exponents;      // of the block's elements, in any order; aligned
  int64_t rows;            // whole rows of 16
  uint64_t first;          // index of the block's first element
};

// Prefetch distance in front of the reads: a few hundred nanoseconds of work.
constexpr int64_t kPrefetch = 3072;

HWY_INLINE void store_after(VU bits, const Block& block, int64_t at) {
  const DF df;
  const VF y = hn::BitCast(df, bits);
  if (block.streamed) {
    hn::Stream(y, df, block.after + at);
  } else {
    hn::StoreU(y, df, block.after + at);
  }
}

// The virtual lanes: element i goes to lane i mod 16.
struct LaneSums {
  VD squares[kDoubles], errors[kDoubles];
  LaneSums() {
    for (int v = 0; v < kDoubles; ++v) squares[v] = errors[v] = hn::Zero(DD());
  }
  void scale(double factor) {
    const VD f = hn::Set(DD(), factor);
    for (int v = 0; v < kDoubles; ++v) {
      squares[v] = hn::Mul(squares[v], f);
      errors[v] = hn::Mul(errors[v], f);
    }
  }
  void store(double* squares_out, double* errors_out) const {
    constexpr int64_t kDoubleLanes = kLanes / 2;
    for (int v = 0; v < kDoubles; ++v) {
      hn::StoreU(squares[v], DD(), squares_out + v * kDoubleLanes);
      hn::StoreU(errors[v], DD(), errors_out + v * kDoubleLanes);
    }
  }
};

// The sums of one group, in float: see GroupRule in emulation/kernels/element_stats.h.
struct GroupSums {
  VF squares[kVectors], errors[kVectors];
  GroupSums() {
    for (int v = 0; v < kVectors; ++v) squares[v] = errors[v] = hn::Zero(DF());
  }
  void add_to(LaneSums& sums) const {
    for (int v = 0; v < kVectors; ++v) {
      add_floats(squares[v], sums.squares + 2 * v);
      add_floats(errors[v], sums.errors + 2 * v);
    }
  }
  static HWY_INLINE void add_floats(VF x, VD* HWY_RESTRICT sums) {
    const DD dd;
    const DHalf dh;
    sums[0] = hn::Add(sums[0], hn::PromoteTo(dd, hn::LowerHalf(dh, x)));
    sums[1] = hn::Add(sums[1], hn::PromoteTo(dd, hn::UpperHalf(dh, x)));
  }
};

// What a scan of the block beforehand shows about its nonzero magnitudes. For all kinds except kAny
// the sums are formed in groups.
enum class BlockKind {
  kNormal,  // normal numbers of the format: only `inexact` is to be counted; the scale is 1
  kFinite,  // none beyond max_finite, so there is no overflow, infinity or NaN
  kLarge,   // finite before the rounding
  kAny,
};

// Zeros and subnormal numbers of a rounded vector.
template <RoundPath kPath>
HWY_INLINE void count_small(VU magnitude, VU result, VU min_normal, ChunkCounts& counts) {
  const VU zero = hn::Zero(DU());
  counts.source_zero = ChunkCounts::plus(counts.source_zero, hn::Eq(magnitude, zero));
  if constexpr (kPath == RoundPath::kIdentity) {
    counts.zero_after = counts.source_zero;
  } else {
    counts.zero_after = ChunkCounts::plus(counts.zero_after, hn::Eq(result, zero));
  }
  counts.below_normal = ChunkCounts::plus(counts.below_normal, less(result, min_normal));
}

// Changed elements of a rounded vector without infinities and NaN.
template <RoundPath kPath>
HWY_INLINE void count_changed(VU magnitude, VU result, ChunkCounts& counts) {
  if constexpr (kPath != RoundPath::kIdentity) {
    counts.inexact = ChunkCounts::plus(counts.inexact, hn::Ne(result, magnitude));
  }
}

// Changed elements and overflow of a vector that was finite before its rounding. Returns which are
// no longer finite.
HWY_INLINE MU count_large(VU magnitude, VU result, VU max_finite, ChunkCounts& counts) {
  const MU lost = hn::Not(less(result, hn::Set(DU(), kInfinityBits)));
  counts.inexact = ChunkCounts::plus(counts.inexact, hn::Ne(result, magnitude));
  counts.to_infinity = ChunkCounts::plus(counts.to_infinity, lost);
  counts.saturated = ChunkCounts::plus(
      counts.saturated, hn::And(less(max_finite, magnitude), hn::Eq(result, max_finite)));
  return lost;
}

struct SpecialElements {
  MU nan, finite, lost;  // before the rounding; lost: finite before, not after
};
// Changed elements, overflow and NaN of a rounded vector that may hold anything.
HWY_INLINE SpecialElements count_any(VU magnitude, VU result, VU max_finite, ChunkCounts& counts) {
  const VU infinity = hn::Set(DU(), kInfinityBits);
  const MU nan = less(infinity, magnitude);
  const MU finite = less(magnitude, infinity);
  const MU lost = hn::AndNot(less(result, infinity), finite);
  counts.nan = ChunkCounts::plus(counts.nan, nan);
  counts.inexact = ChunkCounts::plus(counts.inexact, hn::AndNot(nan, hn::Ne(result, magnitude)));
  counts.to_infinity = ChunkCounts::plus(counts.to_infinity, lost);
  counts.saturated = ChunkCounts::plus(
      counts.saturated,
      hn::And(hn::AndNot(nan, less(max_finite, magnitude)), hn::Eq(result, max_finite)));
  return {nan, finite, lost};
}

struct MeasuredVector {
  VU magnitude;  // before
  VF x, y;       // before and after; of kLarge, y is x where it is not finite
};
// Rounds, stores and measures one vector, the v-th of its row. Leaves out the exponents, zeros in a
// block of kNormal, and extremes and sums except in a block of kAny.
template <RoundPath kPath, BlockKind kKind>
HWY_INLINE MeasuredVector measure_vector(const Block& block, int64_t at, int v,
                                         const VectorRounder& rounder, VU max_finite, VU min_normal,
                                         uint32_t row_key, ChunkCounts& counts, LaneSums& sums,
                                         BlockLook& look) {
  const DF df;
  const DU du;
  const VU zero = hn::Zero(du), infinity = hn::Set(du, kInfinityBits);
  const VF x = hn::LoadU(df, block.before + at);
  const VU bits = hn::BitCast(du, x);
  const VU sign_bit = hn::Set(du, kSignBit);
  const VU sign = hn::And(bits, sign_bit);
  const VU magnitude = hn::AndNot(sign_bit, bits);
  VU random = zero;
  if constexpr (kPath == RoundPath::kGeneric) {
    if (block.random != nullptr) random = hn::LoadU(du, block.random + at);
  }
  VU result = rounder.round_magnitude<kPath, kKind == BlockKind::kNormal>(magnitude, sign, random);
  VU after_bits;
  constexpr bool kOverflows = kKind == BlockKind::kLarge || kKind == BlockKind::kAny;
  if constexpr (kPath == RoundPath::kIdentity && kKind != BlockKind::kAny) {
    after_bits = bits;
  } else if constexpr (kPath != RoundPath::kGeneric && !kOverflows) {
    after_bits = hn::OrAnd(result, bits, sign_bit);  // with_sign in one instruction
  } else if constexpr (!kOverflows) {
    after_bits = rounder.with_sign<kPath>(result, sign);
  } else {
    result = kKind == BlockKind::kLarge ? rounder.fix_overflow<kPath>(sign, result)
                                        : rounder.fix_specials<kPath>(magnitude, sign, result);
    const MU nan = less(infinity, result);
    after_bits = hn::IfThenElse(nan, result, rounder.with_sign<kPath>(result, sign));
  }
  VF y = hn::BitCast(df, after_bits);
  look.add(block.ahead + at);
  hwy::Prefetch(block.ahead + at + kPrefetch);
  counts.hash.add(after_bits, row_key, v);

  if constexpr (kKind != BlockKind::kNormal) {
    count_small<kPath>(magnitude, result, min_normal, counts);
  }
  if constexpr (!kOverflows) {
    count_changed<kPath>(magnitude, result, counts);
  } else if constexpr (kKind == BlockKind::kLarge) {
    const MU lost = count_large(magnitude, result, max_finite, counts);
    y = hn::IfThenElse(hn::RebindMask(df, lost), x, y);
  } else {
    const auto [nan, finite, lost] = count_any(magnitude, result, max_finite, counts);
    counts.abs_max = hn::Max(counts.abs_max, hn::IfThenZeroElse(nan, magnitude));
    counts.abs_min_less_1 =
        hn::Min(counts.abs_min_less_1,
                hn::Or(hn::Sub(magnitude, hn::Set(du, 1)), hn::Not(hn::VecFromMask(du, finite))));
    const auto finite_f = hn::RebindMask(df, finite);
    const auto both_f = hn::RebindMask(df, hn::AndNot(lost, finite));
    add_squares(hn::IfThenElseZero(finite_f, x), sums.squares + 2 * v);
    add_squared_difference(hn::IfThenElseZero(both_f, y), hn::IfThenElseZero(both_f, x),
                           sums.errors + 2 * v);
  }
  // `after` may be `before`: nothing is read once this is written.
  if (block.after != nullptr) store_after(after_bits, block, at);
  return {magnitude, x, y};
}

// The exponent bytes of four vectors in one: bits 30 to 23 of each lane, shifted to its byte.
constexpr int kPacked = 4;
HWY_INLINE VU pack_exponents(const VU* magnitude) {
  const DU du;
  constexpr uint32_t kByte1 = 0xff00, kByte3 = 0xff000000, kLowBytes = 0xffff;
  const VU low = select_bits(hn::Set(du, kByte1), hn::ShiftRight<15>(magnitude[1]),
                             hn::ShiftRight<kFloatFraction>(magnitude[0]));
  const VU high = select_bits(hn::Set(du, kByte3), hn::Add(magnitude[3], magnitude[3]),
                              hn::ShiftRight<7>(magnitude[2]));
  return select_bits(hn::Set(du, kLowBytes), low, high);
}

// Adds the block's rows to `chunk` and writes its virtual lanes. Block and rounder are copies, so
// that the compiler need not assume that a store changes them.
template <RoundPath kPath, BlockKind kKind>
void measure_rows(Block block, VectorRounder rounder, const QuantizePlan& plan,
                  const GroupRule& rule, ChunkCounts& chunk, BlockLook& look_ahead,
                  double* squares_out, double* errors_out) {
  constexpr bool kExact = kPath == RoundPath::kIdentity;
  const DU du;
  const VU max_finite = hn::Set(du, plan.max_finite), min_normal = hn::Set(du, plan.min_normal);
  HWY_ALIGN uint32_t row_keys[kBlockRows];
  const VU key_step = hn::Mul(hn::Iota(du, 0), hn::Set(du, kHashRowLow));
  for (int64_t row = 0; row < kBlockRows; row += kLanes) {
    const uint32_t key = hash_row_key(block.first / kReductionLanes + static_cast<uint64_t>(row));
    hn::Store(hn::Add(hn::Set(du, key), key_step), du, row_keys + row);
  }
  ChunkCounts counts = chunk;
  BlockLook look;
  LaneSums sums;
  const VF scale = hn::Set(DF(), rule.scale);
  const int64_t end = block.rows * kRow;
  int64_t at = 0;
  for (; at + kGroup <= end; at += kGroup) {
    constexpr int kGroupVectors = static_cast<int>(kGroup / kLanes);
    VU magnitudes[kGroupVectors];
    GroupSums group;
#pragma GCC unroll 8
    for (int t = 0; t < kGroupVectors; ++t) {
      const int v = t % kVectors;
      const MeasuredVector m =
          measure_vector<kPath, kKind>(block, at + t * kLanes, v, rounder, max_finite, min_normal,
                                       row_keys[(at + t * kLanes) / kRow], counts, sums, look);
      magnitudes[t] = m.magnitude;
      if constexpr (kKind != BlockKind::kAny) {
        VF x = m.x, error = hn::Sub(m.y, m.x);
        if constexpr (kKind != BlockKind::kNormal) {
          x = hn::Mul(x, scale);
          error = hn::Mul(error, scale);
        }
        group.squares[v] = hn::MulAdd(x, x, group.squares[v]);
        if constexpr (!kExact) group.errors[v] = hn::MulAdd(error, error, group.errors[v]);
      }
    }
    if constexpr (kKind != BlockKind::kAny) group.add_to(sums);
#pragma GCC unroll 2
    for (int t = 0; t < kGroupVectors; t += kPacked) {
      hn::Store(pack_exponents(magnitudes + t), du,
                reinterpret_cast<uint32_t*>(block.exponents + at + t * kLanes));
    }
  }
  constexpr bool kScaled = kKind == BlockKind::kFinite || kKind == BlockKind::kLarge;
  if constexpr (kScaled) sums.scale(rule.unscale);
  for (; at < end; at += kRow) {
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
      const MeasuredVector m =
          measure_vector<kPath, kKind>(block, at + v * kLanes, v, rounder, max_finite, min_normal,
                                       row_keys[at / kRow], counts, sums, look);
      if constexpr (kKind != BlockKind::kAny) {
        add_squares(m.x, sums.squares + 2 * v);
        add_squared_difference(m.y, m.x, sums.errors + 2 * v);
      }
      const hn::Rebind<uint8_t, DU> d8;
      hn::StoreU(hn::TruncateTo(d8, hn::ShiftRight<kFloatFraction>(m.magnitude)), d8,
                 block.exponents + at + v * kLanes);
    }
  }
  chunk = counts;
  look_ahead = look;
  sums.store(squares_out, errors_out);
}

// True if every magnitude of the rows is at most `limit`.
HWY_INLINE bool all_within(const float* values, int64_t rows, uint32_t limit) {
  const DU du;
  VU largest = hn::Zero(du);
#pragma GCC unroll 4
  for (int64_t at = 0; at < rows * kRow; at += kLanes) {
    const VU bits = hn::BitCast(du, hn::LoadU(DF(), values + at));
    largest = hn::Max(largest, hn::AndNot(hn::Set(du, kSignBit), bits));
  }
  return hn::AllFalse(du, less(hn::Set(du, limit), largest));
}

#endif  // LOCKSTEP_SIMD_TARGET
}  // namespace HWY_NAMESPACE
}  // namespace lockstep
HWY_AFTER_NAMESPACE();
#endif  // per-target include guard
