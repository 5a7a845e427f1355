// The fused pass: one load per element, then rounding, counts, moments, hash and exponent byte, one
// store. A block of 4096 whose largest magnitude is finite in the format runs the plain variant,
// which knows no overflow, infinity or NaN; a look over the block beforehand (it then lies in the
// L1 cache) tells which. Ragged ends are done element by element by the definition.
#include "emulation/simd/quantize.h"

#include <algorithm>

#include "emulation/block_pass.h"
#include "emulation/scalar/element_rounder.h"
#include "emulation/scalar/quantize.h"
#include "emulation/simd/exponent_histogram.h"
#include "emulation/simd/quantize_plan.h"
#include "emulation/simd/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "emulation/simd/quantize.cc"
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "emulation/simd/measure-inl.h"
#include "emulation/simd/round-inl.h"
#include "emulation/simd/stochastic-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lockstep {
namespace HWY_NAMESPACE {
#if LOCKSTEP_SIMD_TARGET
namespace hn = hwy::HWY_NAMESPACE;

constexpr CountSlicedFunction kCountSliced =
    HWY_TARGET == HWY_AVX2 ? avx2_count_sliced : avx512_count_sliced;

// Stores that go past the caches save the reading of what they overwrite, but whoever reads the
// result next finds it in memory: worth it where the caches could not have held it anyway. The
// limit is what a core commonly has of third-level cache (what the system tells is often the sum).
constexpr int64_t kStreamedBytes = int64_t{32} << 20;
bool is_streamed(int64_t count, const float* before, const float* after) {
  const bool aligned = reinterpret_cast<uintptr_t>(after) % (kLanes * sizeof(float)) == 0;
  return after != nullptr && after != before && aligned &&
         count * static_cast<int64_t>(sizeof(float)) > kStreamedBytes;
}

// Rounds without looking at anything else.
template <RoundPath kPath, bool kPlain>
void round_rows(Block block, VectorRounder rounder) {
  const DF df;
  const DU du;
  const VU sign_bit = hn::Set(du, kSignBit), infinity = hn::Set(du, kInfinityBits);
  for (int64_t at = 0; at < block.rows * kRow; at += kLanes) {
    const VU bits = hn::BitCast(du, hn::LoadU(df, block.before + at));
    const VU sign = hn::And(bits, sign_bit);
    const VU magnitude = hn::AndNot(sign_bit, bits);
    VU random = hn::Zero(du);
    if constexpr (kPath == RoundPath::kGeneric) {
      if (block.random != nullptr) random = hn::LoadU(du, block.random + at);
    }
    VU result = rounder.round_magnitude<kPath>(magnitude, sign, random);
    VU after;
    if constexpr (kPlain) {
      after = rounder.with_sign<kPath>(result, sign);
    } else {
      result = rounder.fix_specials<kPath>(magnitude, sign, result);
      after =
          hn::IfThenElse(less(infinity, result), result, rounder.with_sign<kPath>(result, sign));
    }
    store_after(after, block, at);
    hwy::Prefetch(block.ahead + at);
  }
}

// True when squares of these magnitudes, and of multiples of their last places, are normal floats.
bool needs_no_scale(uint32_t least, uint32_t largest) {
  constexpr uint32_t kLeast = 127 - 40, kLargest = 127 + 60;
  return (least >> kFloatFraction) >= kLeast && (largest >> kFloatFraction) <= kLargest;
}

// One call's constants, and the work on one chunk.
template <RoundPath kPath>
class QuantizePass {
 public:
  QuantizePass(const float* before, float* after, int64_t count, const QuantizeSpec& spec,
               const QuantizePlan& plan)
      : before_(before),
        after_(spec.measure_only ? nullptr : after),
        plan_(plan),
        rounder_(plan),
        element_(spec),
        limits_(*spec.format),
        streamed_(is_streamed(count, before, after_)) {}

  void round(int64_t begin, int64_t end) const {
    for (; begin < end; begin += kReductionBlock) {
      const int64_t block_end = std::min(end, begin + kReductionBlock);
      uint32_t random[kReductionBlock];
      Block block = make_block(begin, block_end, random, nullptr);
      block.ahead = block.before + kReductionBlock;
      if (all_within(block.before, block.rows, plan_.max_finite)) {
        round_rows<kPath, true>(block, rounder_);
      } else {
        round_rows<kPath, false>(block, rounder_);
      }
      for (int64_t i = begin + block.rows * kRow; i < block_end; ++i) {
        after_[i] = element_(before_[i], static_cast<uint64_t>(i));
      }
    }
    if (streamed_) hwy::FlushStream();
  }

  void measure(int64_t begin, int64_t end, TensorStats& part,
               BlockSums<kQuantizeSums>* sums) const {
    ChunkCounts counts;
    ExponentHistogram histogram(kCountSliced);
    BlockLook look;
    bool looked = false;  // at the block to come
    for (; begin < end; begin += kReductionBlock, ++sums) {
      const int64_t block_end = std::min(end, begin + kReductionBlock);
      uint32_t random[kReductionBlock];
      HWY_ALIGN uint8_t exponents[kReductionBlock];
      Block block = make_block(begin, block_end, random, exponents);
      const bool next_is_whole = end - block_end >= kReductionBlock;
      if (next_is_whole) block.ahead = block.before + kReductionBlock;
      VirtualLanes squares, errors;
      const int64_t rounded = block.rows * kRow;
      if (!looked) look.add_rows(block.before, block.rows);
      BlockLook next;
      uint32_t largest = look.largest_bits(), least_less_1 = look.smallest_bits() - 1;
      for (int64_t i = begin + rounded; i < block_end; ++i) {
        const uint32_t magnitude = std::bit_cast<uint32_t>(before_[i]) & ~kSignBit;
        largest = std::max(largest, magnitude);
        least_less_1 = std::min(least_less_1, magnitude - 1);
      }
      const uint32_t least = least_less_1 + 1;  // 0: all are zero
      const GroupRule rule = find_group_rule(least, largest, limits_);
      const bool normal =
          rule.grouped && least >= plan_.min_normal && needs_no_scale(least, largest);
      const auto measure = normal         ? measure_rows<kPath, BlockKind::kNormal>
                           : rule.grouped ? measure_rows<kPath, BlockKind::kFinite>
                                          : measure_rows<kPath, BlockKind::kAny>;
      measure(block, rounder_, plan_, rule, counts, next, squares.lane, errors.lane);
      const uint64_t zero_exponents = histogram.count(
          exponents, rounded,
          {static_cast<int>(least >> kFloatFraction), static_cast<int>(largest >> kFloatFraction)});
      if (rule.grouped) counts.add_extremes(look);
      looked = next_is_whole;
      look = looked ? next : BlockLook();
      if (normal) part.source_zero += zero_exponents;
      part.count += static_cast<uint64_t>(rounded);
      for (int64_t i = begin + block.rows * kRow; i < block_end; ++i) {
        const auto index = static_cast<uint64_t>(i);
        const float x = before_[i];
        const float y = element_(x, index);
        measure_element(x, y, index, limits_, part, squares.lane[i % kRow], errors.lane[i % kRow]);
        if (after_ != nullptr) after_[i] = y;
      }
      sums->sum[kSquares] = squares.join();
      sums->sum[kRoundErrors] = errors.join();
    }
    counts.add_to(part);
    histogram.add_to(part);
    if (streamed_) hwy::FlushStream();
  }

 private:
  Block make_block(int64_t begin, int64_t end, uint32_t* random, uint8_t* exponents) const {
    const int64_t rows = (end - begin) / kRow;
    if (kPath == RoundPath::kGeneric && plan_.rounding == Rounding::kStochastic) {
      constexpr int64_t kRowsPerGroup = kStochasticGroup / kStochasticRow;
      const int64_t groups = (rows + kRowsPerGroup - 1) / kRowsPerGroup;
      fill_stochastic_bits(plan_.random, static_cast<uint64_t>(begin), groups, random);
    } else {
      random = nullptr;
    }
    return {before_ + begin,
            before_ + begin,
            after_ == nullptr ? nullptr : after_ + begin,
            streamed_,
            random,
            exponents,
            rows,
            static_cast<uint64_t>(begin)};
  }

  const float* before_;
  float* after_;
  const QuantizePlan& plan_;
  VectorRounder rounder_;
  ElementRounder<float> element_;
  StatsLimits limits_;
  bool streamed_;
};

template <RoundPath kPath>
void run_pass(const float* before, float* after, int64_t count, const QuantizeSpec& spec,
              const QuantizePlan& plan, TensorStats* stats) {
  const QuantizePass<kPath> pass(before, after, count, spec, plan);
  if (stats == nullptr) {
    if (spec.measure_only) return;
    parallel_for((count + kChunk - 1) / kChunk, [&](int64_t chunk) {
      pass.round(chunk * kChunk, std::min(count, (chunk + 1) * kChunk));
    });
    return;
  }
  *stats = TensorStats();
  const auto totals = for_each_chunk<kQuantizeSums>(
      count, stats,
      [&](int64_t begin, int64_t end, TensorStats& part, BlockSums<kQuantizeSums>* sums) {
        pass.measure(begin, end, part, sums);
      });
  stats->sum_sq = totals.sum[kSquares];
  stats->round_err_sq = totals.sum[kRoundErrors];
}

void quantize(const float* before, float* after, int64_t count, const QuantizeSpec& spec,
              TensorStats* stats) {
  const QuantizePlan plan(spec);
  switch (plan.path) {
    case RoundPath::kIdentity:
      return run_pass<RoundPath::kIdentity>(before, after, count, spec, plan, stats);
    case RoundPath::kMagic:
      return run_pass<RoundPath::kMagic>(before, after, count, spec, plan, stats);
    case RoundPath::kInteger:
      return run_pass<RoundPath::kInteger>(before, after, count, spec, plan, stats);
    case RoundPath::kGeneric:
      return run_pass<RoundPath::kGeneric>(before, after, count, spec, plan, stats);
    case RoundPath::kScalar:
      return scalar_quantize(before, after, count, spec, stats);
  }
}

#endif  // LOCKSTEP_SIMD_TARGET
}  // namespace HWY_NAMESPACE
}  // namespace lockstep
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lockstep {

void avx2_quantize(const float* before, float* after, int64_t count, const QuantizeSpec& spec,
                   TensorStats* stats) {
  N_AVX2::quantize(before, after, count, spec, stats);
}
void avx512_quantize(const float* before, float* after, int64_t count, const QuantizeSpec& spec,
                     TensorStats* stats) {
  N_AVX3::quantize(before, after, count, spec, stats);
}

}  // namespace lockstep
#endif  // HWY_ONCE
