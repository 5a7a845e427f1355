// Register tiles of the vector gemm for tensor cores: chains of aligned blocks over k
// (emulation/accumulator/aligned_block.h), every output in its own lane.
// The loop over blocks of k is outside, the loop over the tile's rows inside: a chain is serial, a
// tile has many chains. Each block uses the fast form if its factors and addends are calm
// (aligned_rules.h), otherwise doubles. Included once per instruction set.
#if defined(LOCKSTEP_GEMM_BLOCKS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LOCKSTEP_GEMM_BLOCKS_INL_H_
#undef LOCKSTEP_GEMM_BLOCKS_INL_H_
#else
#define LOCKSTEP_GEMM_BLOCKS_INL_H_
#endif

#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>

#include "emulation/accumulator/aligned_block_core.h"
#include "emulation/kernels/kernel_set.h"
#include "emulation/kernels/simd/products/aligned_double-inl.h"
#include "emulation/kernels/simd/products/aligned_float-inl.h"
#include "emulation/kernels/simd/products/aligned_operands-inl.h"
#include "emulation/kernels/simd/products/aligned_rules.h"
#include "emulation/kernels/simd/products/gemm_plan.h"
#include "emulation/kernels/simd/products/gemm_tile-inl.h"
#include "emulation/kernels/simd/targets.h"

HWY_BEFORE_NAMESPACE();
namespace lockstep {
namespace HWY_NAMESPACE {
#if LOCKSTEP_SIMD_TARGET
namespace hn = hwy::HWY_NAMESPACE;

class BlockTile {
 public:
  using Element = float;
  static constexpr int kRows = kBlockRows, kCols = kBlockColumns;
  // Facts of whole panels would be too coarse, and would turn what TF32 reads as infinity into NaN.
  static constexpr bool kWantsFacts = false, kWholeDepth = false;
  // Every k block of the gemm starts a block and a promotion interval.
  static_assert(kDepthStep % kLongestInterval == 0 && kDepthStep % kMostLines == 0);

  explicit BlockTile(const BlockRules& rules) : rules_(rules) {}

  void operator()(const TileArgs<float>& t) const { Run(rules_, t).run(); }

 private:
  // One tile over one k block.
  class Run {
   public:
    Run(const BlockRules& rules, const TileArgs<float>& t)
        : rules_(rules),
          spec_(rules.spec),
          t_(t),
          lines_(std::clamp(spec_.length, kFewestLines, kMostLines)) {
      task_ = {.rules = &rules,
               .a = &a_,
               .b = &b_,
               .rows = t.rows,
               .columns = t.cols,
               .events = t.events != nullptr ? events_ : nullptr};
    }

    void run() {
      load();
      if (spec_.promotion_interval == 0) {
        for (int64_t k = 0; k < t_.k; k += lines_) add_blocks(sums_, k, lines_, 0);
      } else {
        for (int64_t k = 0; k < t_.k; k += spec_.promotion_interval) add_interval(k);
      }
      store();
    }

   private:
    static constexpr int kTileSize = kRows * kCols;

    void load() {
      const FloatTag d;
      for (int i = 0; i < t_.rows; ++i) {
        for (int j = 0; j < kCols; j += kFloatLanes) {
          hwy::Prefetch(t_.c + i * t_.ldc + j);  // written at the end
          const auto mask = hn::FirstN(d, static_cast<size_t>(std::clamp(t_.cols - j, 0, kLanes)));
          const FloatVec c =
              t_.load_c ? hn::MaskedLoad(mask, d, t_.c + i * t_.ldc + j) : hn::Zero(d);
          hn::Store(c, d, sums_ + i * kCols + j);
        }
      }
      if (task_.events == nullptr) return;
      // Places beyond the matrix start with all events set, so that they need no check.
      for (int i = 0; i < t_.rows; ++i) {
        std::fill(events_ + i * kCols, events_ + i * kCols + t_.cols, 0u);
        std::fill(events_ + i * kCols + t_.cols, events_ + (i + 1) * kCols, ~0u);
      }
    }

    void store() {
      const FloatTag d;
      for (int i = 0; i < t_.rows; ++i) {
        for (int j = 0; j < t_.cols; j += kFloatLanes) {
          const FloatVec sum = canonical(d, hn::Load(d, sums_ + i * kCols + j));
          const auto mask = hn::FirstN(d, static_cast<size_t>(std::min(t_.cols - j, kLanes)));
          hn::BlendedStore(sum, mask, d, t_.c + i * t_.ldc + j);
        }
        if (task_.events == nullptr) continue;
        for (int j = 0; j < t_.cols; ++j) {
          t_.events[i * t_.lde + j] |= static_cast<uint8_t>(events_[i * kCols + j]);
        }
      }
    }

    // Sums the products of a promotion interval from zero, then adds them to the sums by an IEEE
    // addition.
    void add_interval(int64_t k) {
      std::fill(partial_, partial_ + t_.rows * kCols, 0.0f);
      calm_addends_ = false;
      for (int i = 0; i < spec_.promotion_interval; i += lines_) {
        if (spec_.order == ProductOrder::kAscending && k + i >= t_.k) break;
        add_blocks(partial_, k, spec_.promotion_interval, i);
      }
      for (int i = 0; i < t_.rows * kCols; i += kFloatLanes) promote(i);
    }

    void promote(int i) {
      const FloatTag d;
      const IntTag di;
      const FloatVec x = hn::Load(d, sums_ + i), y = hn::Load(d, partial_ + i);
      const FloatVec sum = hn::Add(x, y);
      // FP16 is rounded twice. This is harmless for sums: 24 >= 2 * 11 + 2.
      const FloatVec result =
          spec_.output == BlockOutput::kFp16NearestEven ? ToFp16()(d, sum) : sum;
      hn::Store(result, d, sums_ + i);
      if (task_.events == nullptr) return;
      const FloatVec infinity = hn::Set(d, std::numeric_limits<float>::infinity());
      const auto finite = hn::And(hn::Lt(hn::Abs(x), infinity), hn::Lt(hn::Abs(y), infinity));
      const auto overflow = hn::And(finite, hn::Eq(hn::Abs(result), infinity));
      const auto rounded =
          hn::Or(hn::Ne(two_sum_error(x, y, sum), hn::Zero(d)), hn::Ne(result, sum));
      const auto inexact = hn::Or(hn::And(finite, rounded), overflow);
      const auto bit = [&](hn::Mask<FloatTag> mask, int32_t event) HWY_ATTR {
        return hn::IfThenElseZero(hn::RebindMask(di, mask), hn::Set(di, event));
      };
      const IntVec seen = hn::Or(hn::Or(bit(overflow, kStepToInfinity), bit(inexact, kStepInexact)),
                                 bit(hn::IsNaN(result), kStepNan));
      auto* events = reinterpret_cast<int32_t*>(events_ + i);
      hn::Store(hn::Or(hn::Load(di, events), seen), di, events);
    }

    // The blocks of products first to first + lines_ - 1 of the interval that starts at k.
    void add_blocks(float* c, int64_t k, int64_t interval, int first) {
      const float *a_lines[kMostLines], *b_lines[kMostLines];
      bool missing[kMostLines];  // beyond the last k, where the hardware reads zeros
      for (int i = 0; i < lines_; ++i) {
        const int64_t at = k + ordered_index(spec_.order, first + i, interval);
        missing[i] = at >= t_.k;
        a_lines[i] = missing[i] ? nullptr : t_.a + at * kRows;
        b_lines[i] = missing[i] ? nullptr : t_.b + at * t_.ldb;
      }
      const bool zeros_count = spec_.zero_products != ZeroProducts::kIgnored;
      const auto lines = static_cast<size_t>(lines_);
      a_.gather({a_lines, lines}, rules_.a_format, spec_.zero_products);
      b_.gather({b_lines, lines}, rules_.b_format, spec_.zero_products);
      const bool calm = calm_factors();
      if (!calm) {
        a_.make_powers(lines_, rules_.a_format, spec_.zero_products);
        b_.make_powers(lines_, rules_.b_format, spec_.zero_products);
      }
      task_.c = c;
      for (int i = 0; i < lines_; i += spec_.length) {
        if (spec_.order == ProductOrder::kAscending && missing[i]) break;
        task_.first = i;
        // Zeros have an effect only where they count.
        int& count = task_.count = spec_.length;
        while (!zeros_count && count > 0 && missing[i + count - kUnroll]) count -= kUnroll;
        add_block(calm);
      }
    }

    void add_block(bool calm_factors) {
      calm_addends_ = calm_factors && (calm_addends_ || addends_are_calm(task_.c));
      if (calm_addends_) return float_block();
      if (calm_factors) {
        a_.make_powers(lines_, rules_.a_format, spec_.zero_products);
        b_.make_powers(lines_, rules_.b_format, spec_.zero_products);
      }
      DoubleBlock(task_).run();
    }

    bool calm_factors() const {
      return a_.is_finite && b_.is_finite &&
             std::min(a_.lowest, b_.lowest) >= CalmBlock::kLowestFactor &&
             std::max(a_.highest, b_.highest) <= CalmBlock::kHighestFactor &&
             a_.lowest + b_.lowest >= CalmBlock::kLowestProduct &&
             a_.highest + b_.highest <= CalmBlock::kHighestProduct;
    }

    bool addends_are_calm(const float* c) const {
      const FloatTag d;
      const FloatVec low = hn::Set(d, CalmBlock::kSmallestAddend);
      const FloatVec high = hn::Set(d, CalmBlock::kLargestAddend);
      auto calm = hn::Eq(low, low);
      for (int i = 0; i < t_.rows * kCols; i += kFloatLanes) {
        const FloatVec x = hn::Abs(hn::Load(d, c + i));
        const auto inside = hn::And(hn::Ge(x, low), hn::Lt(x, high));
        calm = hn::And(calm, hn::Or(inside, hn::Eq(x, hn::Zero(d))));
      }
      return hn::AllTrue(d, calm);
    }

    template <BlockOutput kOutput>
    void float_block_to() {
      const bool events = task_.events != nullptr;
      if (rules_.splits_sum) {
        return events ? run_float_block<kOutput, true, true>(task_)
                      : run_float_block<kOutput, true, false>(task_);
      }
      return events ? run_float_block<kOutput, false, true>(task_)
                    : run_float_block<kOutput, false, false>(task_);
    }
    void float_block() {
      switch (spec_.output) {
        case BlockOutput::kFp32TowardZero:
          return float_block_to<BlockOutput::kFp32TowardZero>();
        case BlockOutput::kE8m13TowardZero:
          return float_block_to<BlockOutput::kE8m13TowardZero>();
        case BlockOutput::kFp16NearestEven:
          return float_block_to<BlockOutput::kFp16NearestEven>();
      }
    }

    static constexpr int kLanes = kFloatLanes;
    const BlockRules& rules_;
    const BlockSpec& spec_;
    const TileArgs<float>& t_;
    const int lines_;  // of k that are gathered at a time
    BlockTask task_;
    bool calm_addends_ = false;  // known to be, from the block before
    BlockSide<kBlockRows> a_;
    BlockSide<kBlockColumns> b_;
    alignas(64) float sums_[kTileSize];
    alignas(64) float partial_[kTileSize];  // of the promotion interval
    alignas(64) uint32_t events_[kTileSize];
  };

  const BlockRules& rules_;
};

#endif  // LOCKSTEP_SIMD_TARGET
}  // namespace HWY_NAMESPACE
}  // namespace lockstep
HWY_AFTER_NAMESPACE();
#endif
