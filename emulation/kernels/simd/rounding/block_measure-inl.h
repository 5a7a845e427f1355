// Statistics, in vectors, of elements that are already rounded. Like
// emulation/kernels/simd/rounding/measure-inl.h, but each element has its own limits. The sums
// equal measure_element's (emulation/kernels/block_pass.h) bit for bit. Included once per target.
#if defined(LOCKSTEP_BLOCK_MEASURE_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef LOCKSTEP_BLOCK_MEASURE_INL_H
#undef LOCKSTEP_BLOCK_MEASURE_INL_H
#else
#define LOCKSTEP_BLOCK_MEASURE_INL_H
#endif

#include <hwy/highway.h>

#include "emulation/kernels/simd/rounding/measure-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lockstep {
namespace HWY_NAMESPACE {
#if LOCKSTEP_SIMD_TARGET
namespace hn = hwy::HWY_NAMESPACE;

// Up to a reduction block of elements before and after their rounding.
struct RoundedElements {
  const float *before, *after;
  // Magnitude bits of the largest and the smallest normal number of each element's block, the
  // latter at least 1; NaN for a NaN block.
  const uint32_t *max_finite, *min_normal;
  uint8_t* exponents;  // written
  int64_t rows;        // whole rows of 16
  uint64_t first;      // index of the first element
};

HWY_INLINE void measure_rounded_vector(const RoundedElements& e, int64_t at, int v,
                                       uint32_t row_key, ChunkCounts& counts, LaneSums& sums) {
  const DF df;
  const DU du;
  const VU zero = hn::Zero(du);
  const VU sign_bit = hn::Set(du, kSignBit);
  const VF x = hn::LoadU(df, e.before + at), y = hn::LoadU(df, e.after + at);
  const VU magnitude = hn::AndNot(sign_bit, hn::BitCast(du, x));
  const VU result = hn::AndNot(sign_bit, hn::BitCast(du, y));
  const VU max_finite = hn::LoadU(du, e.max_finite + at);
  const VU min_normal = hn::LoadU(du, e.min_normal + at);
  counts.hash.add(hn::BitCast(du, y), row_key, v);

  const MU zero_before = hn::Eq(magnitude, zero);
  // A zero in a NaN block is not zero afterwards; it counts as zero here, so that its underflow and
  // subnormal counts cancel (ChunkCounts::add_to).
  const MU zeros = hn::Or(zero_before, hn::Eq(result, zero));
  counts.source_zero = ChunkCounts::plus(counts.source_zero, zero_before);
  counts.zero_after = ChunkCounts::plus(counts.zero_after, zeros);
  counts.below_normal =
      ChunkCounts::plus(counts.below_normal, hn::Or(zeros, less(result, min_normal)));
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
  const hn::Rebind<uint8_t, DU> d8;
  hn::StoreU(hn::TruncateTo(d8, hn::ShiftRight<kFloatFraction>(magnitude)), d8, e.exponents + at);
}

// Adds the rows to `chunk` and writes their virtual lanes.
inline void measure_rounded_rows(RoundedElements elements, ChunkCounts& chunk, double* squares_out,
                                 double* errors_out) {
  ChunkCounts counts = chunk;
  LaneSums sums;
  for (int64_t row = 0; row < elements.rows; ++row) {
    const uint32_t key =
        hash_row_key(elements.first / kReductionLanes + static_cast<uint64_t>(row));
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
      measure_rounded_vector(elements, row * kRow + v * kLanes, v, key, counts, sums);
    }
  }
  chunk = counts;
  sums.store(squares_out, errors_out);
}

#endif  // LOCKSTEP_SIMD_TARGET
}  // namespace HWY_NAMESPACE
}  // namespace lockstep
HWY_AFTER_NAMESPACE();
#endif  // per-target include guard
