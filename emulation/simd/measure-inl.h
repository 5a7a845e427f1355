// Vectors of elements added to the statistics: counts, moments, hash and exponent bytes of whole
// rows of 16, in one pass with the rounding. The sums equal measure_element's
// (emulation/block_pass.h) bit for bit. Included once per target.
#if defined(LOCKSTEP_MEASURE_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef LOCKSTEP_MEASURE_INL_H
#undef LOCKSTEP_MEASURE_INL_H
#else
#define LOCKSTEP_MEASURE_INL_H
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <bit>

#include "emulation/block_pass.h"
#include "emulation/hash.h"
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
  VU abs_max, abs_min_less_1, hash_high;
  hn::Vec<DQ> hash_low;

  ChunkCounts() {
    const DU du;
    source_zero = zero_after = below_normal = inexact = nan = to_infinity = saturated = abs_max =
        hash_high = hn::Zero(du);
    abs_min_less_1 = hn::Set(du, 0xffffffffu);
    hash_low = hn::Zero(DQ());
  }

  static HWY_INLINE VU plus(VU count, MU mask) {
    return hn::Sub(count, hn::VecFromMask(DU(), mask));
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
    HWY_ALIGN uint64_t low[kLanes / 2];
    hn::Store(hash_low, DQ(), low);
    stats.bits_hash += total(hash_high) << 32;
    for (const uint64_t lane : low) stats.bits_hash += lane;
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
HWY_INLINE void add_hash(VU bits, VU key_low, VU key_high, ChunkCounts& counts) {
  const DU du;
  const DQ dq;
  VU low = hn::Xor(bits, key_low);
  low = hn::Xor(low, hn::ShiftRight<kHashShift0>(low));
  low = hn::Mul(low, hn::Set(du, kHashMultiplier0));
  low = hn::Xor(low, hn::ShiftRight<kHashShift1>(low));
  VU high = hn::Xor(low, key_high);
  high = hn::Xor(high, hn::ShiftRight<kHashShift1>(high));
  high = hn::Mul(high, hn::Set(du, kHashMultiplier1));
  high = hn::Xor(high, hn::ShiftRight<kHashShift0>(high));
  counts.hash_high = hn::Add(counts.hash_high, high);
  const auto wide = hn::BitCast(dq, low);
  counts.hash_low = hn::Add(counts.hash_low, hn::And(wide, hn::Set(dq, 0xffffffffu)));
  counts.hash_low = hn::Add(counts.hash_low, hn::ShiftRight<32>(wide));
}

struct Block {
  const float* before;
  float* after;            // null: nothing is stored
  const uint32_t* random;  // of the block's elements; null unless rounding is stochastic
  uint8_t* exponents;      // of the block's elements
  int64_t rows;            // whole rows of 16
  uint64_t first;          // index of the block's first element
};

// Adds the block's rows to `chunk` and writes its virtual lanes. Block and rounder are copies, so
// that the compiler need not expect a store to change them. kPlain: no magnitude beyond max_finite.
template <RoundPath kPath, bool kPlain>
void measure_rows(Block block, VectorRounder rounder, const QuantizePlan& plan, ChunkCounts& chunk,
                  double* squares_out, double* errors_out) {
  const DF df;
  const DU du;
  const VU sign_bit = hn::Set(du, kSignBit), zero = hn::Zero(du), one = hn::Set(du, 1);
  const VU infinity = hn::Set(du, kInfinityBits);
  const VU max_finite = hn::Set(du, plan.max_finite), min_normal = hn::Set(du, plan.min_normal);
  VD squares[kDoubles], errors[kDoubles];
  for (int v = 0; v < kDoubles; ++v) squares[v] = errors[v] = hn::Zero(DD());
  VU keys_low[kVectors], keys_high[kVectors];
  const HashKeys first_keys(block.first);
  for (int v = 0; v < kVectors; ++v) {
    const VU iota = hn::Iota(du, static_cast<uint32_t>(v * kLanes));
    keys_low[v] = hn::Add(hn::Set(du, first_keys.low), hn::Mul(iota, hn::Set(du, kHashIndexLow0)));
    keys_high[v] =
        hn::Add(hn::Set(du, first_keys.high), hn::Mul(iota, hn::Set(du, kHashIndexLow1)));
  }
  const VU key_step_low = hn::Set(du, kHashIndexLow0 * static_cast<uint32_t>(kRow));
  const VU key_step_high = hn::Set(du, kHashIndexLow1 * static_cast<uint32_t>(kRow));
  ChunkCounts counts = chunk;

  for (int64_t row = 0; row < block.rows; ++row) {
    for (int v = 0; v < kVectors; ++v) {
      const int64_t at = row * kRow + v * kLanes;
      const VF x = hn::LoadU(df, block.before + at);
      const VU bits = hn::BitCast(du, x);
      const VU sign = hn::And(bits, sign_bit);
      const VU magnitude = hn::AndNot(sign_bit, bits);
      VU random = zero;
      if constexpr (kPath == RoundPath::kGeneric) {
        if (block.random != nullptr) random = hn::LoadU(du, block.random + at);
      }
      VU result = rounder.round_magnitude<kPath>(magnitude, sign, random);
      VU after_bits;
      if constexpr (kPlain) {
        after_bits = hn::Or(result, sign);
      } else {
        result = rounder.fix_specials<kPath>(magnitude, sign, result);
        const MU nan = less(infinity, result);
        after_bits = hn::IfThenElse(nan, result, hn::Or(result, sign));
      }
      const VF y = hn::BitCast(df, after_bits);
      if (block.after != nullptr) hn::StoreU(y, df, block.after + at);

      counts.source_zero = ChunkCounts::plus(counts.source_zero, hn::Eq(magnitude, zero));
      if constexpr (kPath == RoundPath::kIdentity) {
        counts.zero_after = counts.source_zero;
      } else {
        counts.zero_after = ChunkCounts::plus(counts.zero_after, hn::Eq(result, zero));
      }
      counts.below_normal = ChunkCounts::plus(counts.below_normal, less(result, min_normal));
      add_hash(after_bits, keys_low[v], keys_high[v], counts);
      keys_low[v] = hn::Add(keys_low[v], key_step_low);
      keys_high[v] = hn::Add(keys_high[v], key_step_high);
      const hn::Rebind<uint8_t, DU> d8;
      hn::StoreU(hn::TruncateTo(d8, hn::ShiftRight<kFloatFraction>(magnitude)), d8,
                 block.exponents + at);

      if constexpr (kPlain) {
        if constexpr (kPath != RoundPath::kIdentity) {
          counts.inexact = ChunkCounts::plus(counts.inexact, hn::Ne(result, magnitude));
        }
        counts.abs_max = hn::Max(counts.abs_max, magnitude);
        counts.abs_min_less_1 = hn::Min(counts.abs_min_less_1, hn::Sub(magnitude, one));
        add_squares(x, squares + 2 * v);
        if constexpr (kPath == RoundPath::kMagic || kPath == RoundPath::kInteger) {
          // To nearest, the error is a multiple of x's last place and not above |x|: a float.
          add_squares(hn::Sub(y, x), errors + 2 * v);
        } else if constexpr (kPath == RoundPath::kGeneric) {
          add_squared_difference(y, x, errors + 2 * v);
        }
      } else {
        const MU nan = less(infinity, magnitude);
        const MU finite = less(magnitude, infinity);
        const MU lost = hn::AndNot(less(result, infinity), finite);  // finite before, not after
        counts.nan = ChunkCounts::plus(counts.nan, nan);
        counts.inexact =
            ChunkCounts::plus(counts.inexact, hn::AndNot(nan, hn::Ne(after_bits, bits)));
        counts.to_infinity = ChunkCounts::plus(counts.to_infinity, lost);
        counts.saturated = ChunkCounts::plus(
            counts.saturated,
            hn::And(hn::AndNot(nan, less(max_finite, magnitude)), hn::Eq(result, max_finite)));
        counts.abs_max = hn::Max(counts.abs_max, hn::IfThenZeroElse(nan, magnitude));
        counts.abs_min_less_1 =
            hn::Min(counts.abs_min_less_1,
                    hn::Or(hn::Sub(magnitude, one), hn::Not(hn::VecFromMask(du, finite))));
        const auto finite_f = hn::RebindMask(df, finite);
        const auto both_f = hn::RebindMask(df, hn::AndNot(lost, finite));
        add_squares(hn::IfThenElseZero(finite_f, x), squares + 2 * v);
        add_squared_difference(hn::IfThenElseZero(both_f, y), hn::IfThenElseZero(both_f, x),
                               errors + 2 * v);
      }
    }
  }
  chunk = counts;
  constexpr int64_t kDoubleLanes = kLanes / 2;
  for (int v = 0; v < kDoubles; ++v) {
    hn::StoreU(squares[v], DD(), squares_out + v * kDoubleLanes);
    hn::StoreU(errors[v], DD(), errors_out + v * kDoubleLanes);
  }
}

// True when every magnitude of the rows is at most `limit`.
HWY_INLINE bool all_within(const float* values, int64_t rows, uint32_t limit) {
  const DU du;
  VU largest = hn::Zero(du);
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
