// The fused pass: one load per element, then rounding, counts, moments, hash and exponent byte, one
// store. A block of 4096 whose largest magnitude is finite in the format runs the plain variant,
// without overflow, infinity and NaN. A scan of the block beforehand, which also brings it into the
// L1 cache, selects the variant. Ragged ends run element by element by the definition.
#include "emulation/kernels/simd/rounding/quantize.h"

#include <algorithm>
#include <memory>

#include "emulation/kernels/block_pass.h"
#include "emulation/kernels/scalar/rounding/element_rounder.h"
#include "emulation/kernels/scalar/rounding/quantize.h"
#include "emulation/kernels/simd/rounding/chunk_comparer.h"
#include "emulation/kernels/simd/rounding/exponent_histogram.h"
#include "emulation/kernels/simd/rounding/piece_quantizer.h"
#include "emulation/kernels/simd/rounding/quantize_plan.h"
#include "emulation/kernels/simd/targets.h"
#include "src/core/chunks.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "emulation/kernels/simd/rounding/quantize.cc"
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "emulation/kernels/simd/rounding/measure-inl.h"
#include "emulation/kernels/simd/rounding/round-inl.h"
#include "emulation/kernels/simd/rounding/stochastic-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lockstep {
namespace HWY_NAMESPACE {
#if LOCKSTEP_SIMD_TARGET
namespace hn = hwy::HWY_NAMESPACE;

constexpr CountSlicedFunction kCountSliced =
    HWY_TARGET == HWY_AVX2 ? avx2_count_sliced : avx512_count_sliced;
constexpr auto kChunkComparer =
    HWY_TARGET == HWY_AVX2 ? avx2_chunk_comparer : avx512_chunk_comparer;

// Stores that bypass the caches need not read what they overwrite, but the next reader of the
// result finds it in memory. This pays if the caches could not have held the result anyway. The
// limit is a core's usual share of third-level cache (the system often reports the sum).
constexpr int64_t kStreamedBytes = int64_t{32} << 20;
bool is_streamed(int64_t count, const float* before, const float* after) {
  const bool aligned = reinterpret_cast<uintptr_t>(after) % (kLanes * sizeof(float)) == 0;
  return after != nullptr && after != before && aligned &&
         count * static_cast<int64_t>(sizeof(float)) > kStreamedBytes;
}

// Rounds without measuring; with `chunk`, elements are counted. kPlain: no magnitude is beyond
// max_finite.
template <RoundPath kPath, bool kPlain, bool kCounts>
void round_rows(Block block, VectorRounder rounder, const QuantizePlan& plan, ChunkCounts* chunk) {
  const DF df;
  const DU du;
  const VU max_finite = hn::Set(du, plan.max_finite), min_normal = hn::Set(du, plan.min_normal);
  ChunkCounts counts;
  if constexpr (kCounts) counts = *chunk;
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
    if constexpr (kCounts) {
      count_small<kPath>(magnitude, result, min_normal, counts);
      if constexpr (kPlain) {
        count_changed<kPath>(magnitude, result, counts);
      } else {
        count_any(magnitude, result, max_finite, counts);
      }
    }
    store_after(after, block, at);
    hwy::Prefetch(block.ahead + at);
  }
  if constexpr (kCounts) *chunk = counts;
}

// True if squares of these magnitudes, and of multiples of their last places, are normal floats.
bool needs_no_scale(uint32_t least, uint32_t largest) {
  constexpr uint32_t kLeast = 127 - 40, kLargest = 127 + 60;
  return (least >> kFloatFraction) >= kLeast && (largest >> kFloatFraction) <= kLargest;
}

// The counts of a chunk, or of the pieces that one thread measures.
class Tally final : public PieceTally {
 public:
  void add_to(TensorStats& stats) const override {
    stats.merge(part);
    counts.add_to(stats);
    histogram.add_to(stats);
  }
  ChunkCounts counts;
  ExponentHistogram histogram{kCountSliced};
  TensorStats part;  // of elements measured one by one, and counts per block
};

// One call's constants, and the work on one piece: [begin, end) of the array, rounded to `out`.
template <RoundPath kPath>
class QuantizePass {
 public:
  QuantizePass(const float* before, const QuantizeSpec& spec, const QuantizePlan& plan,
               bool streamed)
      : before_(before),
        plan_(plan),
        rounder_(plan),
        element_(spec),
        limits_(*spec.format),
        streamed_(streamed) {}

  void round(int64_t begin, int64_t end, float* out) const {
    round<false>(begin, end, out, nullptr);
  }
  void count(int64_t begin, int64_t end, float* out, Tally& tally) const {
    round<true>(begin, end, out, &tally);
  }

  // `out` may be null: nothing is stored.
  void measure(int64_t begin, int64_t end, float* out, Tally& tally,
               BlockSums<kQuantizeSums>* sums) const {
    ChunkCounts& counts = tally.counts;
    TensorStats& part = tally.part;
    BlockLook look;
    bool looked = false;  // at the next block
    for (; begin < end; begin += kReductionBlock, ++sums) {
      const int64_t block_end = std::min(end, begin + kReductionBlock);
      uint32_t random[kReductionBlock];
      HWY_ALIGN uint8_t exponents[kReductionBlock];
      Block block = make_block(begin, block_end, out, random, exponents);
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
      const bool large = largest > plan_.max_finite;
      const bool normal =
          rule.grouped && !large && least >= plan_.min_normal && needs_no_scale(least, largest);
      const auto measure = !rule.grouped ? measure_rows<kPath, BlockKind::kAny>
                           : large       ? measure_rows<kPath, BlockKind::kLarge>
                           : normal      ? measure_rows<kPath, BlockKind::kNormal>
                                         : measure_rows<kPath, BlockKind::kFinite>;
      measure(block, rounder_, plan_, rule, counts, next, squares.lane, errors.lane);
      const uint64_t zero_exponents = tally.histogram.count(
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
        if (out != nullptr) out[i - begin] = y;
      }
      if (out != nullptr) out += kReductionBlock;
      sums->sum[kSquares] = squares.join();
      sums->sum[kRoundErrors] = errors.join();
    }
    if (streamed_) hwy::FlushStream();
  }

 private:
  template <bool kCounts>
  void round(int64_t begin, int64_t end, float* out, Tally* tally) const {
    ChunkCounts* const counts = kCounts ? &tally->counts : nullptr;
    for (; begin < end; begin += kReductionBlock, out += kReductionBlock) {
      const int64_t block_end = std::min(end, begin + kReductionBlock);
      uint32_t random[kReductionBlock];
      Block block = make_block(begin, block_end, out, random, nullptr);
      block.ahead = block.before + kReductionBlock;
      if (all_within(block.before, block.rows, plan_.max_finite)) {
        round_rows<kPath, true, kCounts>(block, rounder_, plan_, counts);
      } else {
        round_rows<kPath, false, kCounts>(block, rounder_, plan_, counts);
      }
      for (int64_t i = begin + block.rows * kRow; i < block_end; ++i) {
        const auto index = static_cast<uint64_t>(i);
        const float x = before_[i], y = element_(x, index);
        if constexpr (kCounts) count_element(x, y, index, limits_, tally->part);
        out[i - begin] = y;
      }
      if constexpr (kCounts) tally->part.count += static_cast<uint64_t>(block.rows * kRow);
    }
    if (streamed_) hwy::FlushStream();
  }

  Block make_block(int64_t begin, int64_t end, float* out, uint32_t* random,
                   uint8_t* exponents) const {
    const int64_t rows = (end - begin) / kRow;
    if (kPath == RoundPath::kGeneric && plan_.rounding == Rounding::kStochastic) {
      constexpr int64_t kRowsPerGroup = kStochasticGroup / kStochasticRow;
      const int64_t groups = (rows + kRowsPerGroup - 1) / kRowsPerGroup;
      fill_stochastic_bits(plan_.random, static_cast<uint64_t>(begin), groups, random);
    } else {
      random = nullptr;
    }
    return {before_ + begin, before_ + begin, out,  streamed_,
            random,          exponents,       rows, static_cast<uint64_t>(begin)};
  }

  const float* before_;
  const QuantizePlan& plan_;
  VectorRounder rounder_;
  ElementRounder<float> element_;
  StatsLimits limits_;
  bool streamed_;
};

// `fill`, if not null, writes `before`.
template <RoundPath kPath>
void run_pass(const FillRange* fill, const float* before, float* after, int64_t count,
              const QuantizeSpec& spec, const QuantizePlan& plan, TensorStats* stats) {
  if (spec.measure_only) after = nullptr;
  const bool counts_only = spec.counts_only && !spec.measure_only;
  std::unique_ptr<ChunkComparer> comparer;
  const bool compares = spec.comparison != nullptr && spec.comparison->reference != nullptr;
  if (stats != nullptr && !counts_only && compares) {
    comparer = kChunkComparer(after != nullptr ? after : before, count, *spec.comparison);
  }
  const bool streams = comparer == nullptr && is_streamed(count, before, after);
  const QuantizePass<kPath> pass(before, spec, plan, streams);
  if (stats == nullptr) {
    if (spec.measure_only) return;
    parallel_chunks(count, chunk_blocks(count) * kReductionBlock, [&](int64_t begin, int64_t end) {
      if (fill != nullptr) (*fill)(begin, end);
      pass.round(begin, end, after + begin);
    });
    return;
  }
  *stats = TensorStats();
  ChunkResults<kQuantizeSums, TensorStats> results(count);
  parallel_for(results.chunks(), [&](int64_t i) {
    const int64_t begin = results.begin(i), end = results.end(i);
    float* const out = after == nullptr ? nullptr : after + begin;
    if (fill != nullptr) (*fill)(begin, end);
    Tally tally;
    if (counts_only) {
      pass.count(begin, end, out, tally);
    } else {
      pass.measure(begin, end, out, tally, results.sums(i));
    }
    tally.add_to(results.part(i));
    if (comparer != nullptr) comparer->compare(i);
  });
  const auto totals = results.join(stats);
  stats->sum_sq = totals.sum[kSquares];
  stats->round_err_sq = totals.sum[kRoundErrors];
  if (comparer == nullptr) return;
  spec.comparison->error = comparer->error();
  spec.comparison->done = true;
}

void quantize(const FillRange* fill, const float* before, float* after, int64_t count,
              const QuantizeSpec& spec, TensorStats* stats) {
  const QuantizePlan plan(spec);
  switch (plan.path) {
    case RoundPath::kIdentity:
      return run_pass<RoundPath::kIdentity>(fill, before, after, count, spec, plan, stats);
    case RoundPath::kMagic:
      return run_pass<RoundPath::kMagic>(fill, before, after, count, spec, plan, stats);
    case RoundPath::kInteger:
      return run_pass<RoundPath::kInteger>(fill, before, after, count, spec, plan, stats);
    case RoundPath::kGeneric:
      return run_pass<RoundPath::kGeneric>(fill, before, after, count, spec, plan, stats);
    case RoundPath::kScalar:
      if (fill != nullptr) (*fill)(0, count);
      return scalar_quantize(before, after, count, spec, stats);
  }
}

template <RoundPath kPath>
class PathQuantizer final : public PieceQuantizer {
 public:
  PathQuantizer(const float* before, const QuantizeSpec& spec)
      : measure_only_(spec.measure_only), plan_(spec), pass_(before, spec, plan_, false) {}
  std::unique_ptr<PieceTally> make_tally() const override { return std::make_unique<Tally>(); }
  void round(int64_t begin, int64_t end, float* out) const override {
    pass_.round(begin, end, out);
  }
  void measure(int64_t begin, int64_t end, float* out, PieceTally& tally,
               BlockSums<kQuantizeSums>* sums) const override {
    pass_.measure(begin, end, measure_only_ ? nullptr : out, static_cast<Tally&>(tally), sums);
  }

 private:
  const bool measure_only_;
  const QuantizePlan plan_;
  const QuantizePass<kPath> pass_;
};

std::unique_ptr<PieceQuantizer> piece_quantizer(const float* before, const QuantizeSpec& spec) {
  switch (QuantizePlan(spec).path) {
    case RoundPath::kIdentity:
      return std::make_unique<PathQuantizer<RoundPath::kIdentity>>(before, spec);
    case RoundPath::kMagic:
      return std::make_unique<PathQuantizer<RoundPath::kMagic>>(before, spec);
    case RoundPath::kInteger:
      return std::make_unique<PathQuantizer<RoundPath::kInteger>>(before, spec);
    case RoundPath::kGeneric:
      return std::make_unique<PathQuantizer<RoundPath::kGeneric>>(before, spec);
    case RoundPath::kScalar:
      return nullptr;
  }
  return nullptr;
}

#endif  // LOCKSTEP_SIMD_TARGET
}  // namespace HWY_NAMESPACE
}  // namespace lockstep
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lockstep {

void avx2_quantize(const float* before, float* after, int64_t count, const QuantizeSpec& spec,
                   TensorStats* stats) {
  N_AVX2::quantize(nullptr, before, after, count, spec, stats);
}
void avx512_quantize(const float* before, float* after, int64_t count, const QuantizeSpec& spec,
                     TensorStats* stats) {
  N_AVX3::quantize(nullptr, before, after, count, spec, stats);
}
void avx2_fill_and_quantize(const FillRange& fill, float* values, int64_t count,
                            const QuantizeSpec& spec, TensorStats* stats) {
  N_AVX2::quantize(&fill, values, values, count, spec, stats);
}
void avx512_fill_and_quantize(const FillRange& fill, float* values, int64_t count,
                              const QuantizeSpec& spec, TensorStats* stats) {
  N_AVX3::quantize(&fill, values, values, count, spec, stats);
}
std::unique_ptr<PieceQuantizer> avx2_piece_quantizer(const float* before,
                                                     const QuantizeSpec& spec) {
  return N_AVX2::piece_quantizer(before, spec);
}
std::unique_ptr<PieceQuantizer> avx512_piece_quantizer(const float* before,
                                                       const QuantizeSpec& spec) {
  return N_AVX3::piece_quantizer(before, spec);
}

void use_simd_quantize(KernelSet& set, SimdTarget target) {
  const bool is_avx2 = target == SimdTarget::kAvx2;
  set.f32.quantize = is_avx2 ? avx2_quantize : avx512_quantize;
  set.f32.fill_and_quantize = is_avx2 ? avx2_fill_and_quantize : avx512_fill_and_quantize;
  set.f32.compare = is_avx2 ? avx2_compare : avx512_compare;
}

}  // namespace lockstep
#endif  // HWY_ONCE
