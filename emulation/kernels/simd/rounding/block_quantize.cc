// Blocks along a row: a block of 16 or 32 is two or four vectors that stay in registers between
// finding its largest magnitude and rounding; longer ones and squares are read twice. Blocks down a
// column: tiles of 256 columns, one lane per block,
// read twice (the second time from the L1 cache). Elements are brought to the block's scale by a
// multiplication (a division for nvfp4), rounded by VectorRounder, and multiplied back.
//
// The quotient x / s in float equals the exact one wherever it affects the rounding. It is exact
// down to 2^-126. Below that, only "nonzero, far below half the least subnormal" matters to every
// element format; an x / s that underflows to zero counts as the least float.
#include "emulation/kernels/simd/rounding/block_quantize.h"

#include <algorithm>
#include <bit>

#include "emulation/kernels/block_pass.h"
#include "emulation/kernels/scalar/rounding/block_quantize.h"
#include "emulation/kernels/scalar/rounding/block_squares.h"
#include "emulation/kernels/simd/rounding/block_plan.h"
#include "emulation/kernels/simd/rounding/exponent_histogram.h"
#include "emulation/kernels/simd/targets.h"
#include "src/core/chunks.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "emulation/kernels/simd/rounding/block_quantize.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "emulation/kernels/simd/rounding/block_measure-inl.h"
#include "emulation/kernels/simd/rounding/round-inl.h"
#include "emulation/kernels/simd/rounding/stochastic-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lockstep {
namespace HWY_NAMESPACE {
#if LOCKSTEP_SIMD_TARGET
namespace hn = hwy::HWY_NAMESPACE;

constexpr CountSlicedFunction kCountSliced =
    HWY_TARGET == HWY_AVX2 ? avx2_count_sliced : avx512_count_sliced;

// The random bits of runs of neighbouring elements.
class RandomRuns {
 public:
  RandomRuns(const StochasticArrayKey& key, bool used) : key_(key), used_(used) {}
  // The bits of elements [index, index + size), size <= kLongest; null where none are used.
  const uint32_t* at(uint64_t index, int64_t size) {
    if (!used_) return nullptr;
    const uint64_t end = index + static_cast<uint64_t>(size);
    if (index < begin_ || end > end_) {
      begin_ = index - index % kStochasticGroup;
      end_ = begin_ + kGroups * kStochasticGroup;
      fill_stochastic_bits(key_, begin_, kGroups, bits_);
    }
    return bits_ + (index - begin_);
  }
  static constexpr int64_t kLongest = 256;

 private:
  static constexpr int64_t kGroups = kLongest / static_cast<int64_t>(kStochasticGroup) + 1;
  const StochasticArrayKey& key_;
  bool used_;
  uint64_t begin_ = 0, end_ = 0;
  uint32_t bits_[kGroups * kStochasticGroup];
};

// Elements are divided by their block's scale, rounded, and multiplied back. kPlain: see BlockPlan;
// a NaN scale then gives no meaningful result.
template <RoundPath kPath, bool kPlain, bool kDivides>
class ElementRounding {
 public:
  explicit ElementRounding(const QuantizePlan& plan)
      : rounder_(plan), max_finite_(plan.max_finite) {}

  HWY_INLINE VF operator()(VF x, VF scale, VF inverse, VU random) const {
    const DF df;
    const DU du;
    const VU sign_bit = hn::Set(du, kSignBit);
    const VU x_bits = hn::BitCast(du, x), sign = hn::And(x_bits, sign_bit);
    const VU x_magnitude = hn::AndNot(sign_bit, x_bits);
    const VF x_abs = hn::BitCast(df, x_magnitude);
    VU magnitude = hn::BitCast(du, kDivides ? hn::Div(x_abs, scale) : hn::Mul(x_abs, inverse));
    VU after;
    if constexpr (kPlain) {
      // Above the largest finite number, `rounded` is too large, infinite or NaN.
      const VU rounded =
          rounder_.template round_magnitude<RoundPath::kMagic>(magnitude, sign, sign);
      after = hn::OrAnd(hn::Min(rounded, hn::Set(du, max_finite_)), x_bits, sign_bit);
    } else {
      if (!kDivides) {
        magnitude = hn::Max(magnitude, hn::Min(x_magnitude, hn::Set(du, 1)));
      }
      VU result = rounder_.template round_magnitude<kPath>(magnitude, sign, random);
      result = rounder_.template fix_specials<kPath>(magnitude, sign, result);
      after = hn::IfThenElse(less(hn::Set(du, kInfinityBits), result), result,
                             rounder_.template with_sign<kPath>(result, sign));
    }
    const VF value = hn::Mul(hn::BitCast(df, after), scale);
    if (!kDivides) return value;
    return hn::IfThenElse(hn::Eq(scale, hn::Zero(df)), hn::BitCast(df, sign), value);
  }

 private:
  VectorRounder rounder_;
  uint32_t max_finite_;
};

// One call's constants, and the work on some blocks. The loops work on copies of the constants, so
// that the compiler need not assume that a store changes them. kBlock 0: any size, read twice.
template <RoundPath kPath, bool kPlain, bool kDivides, int kBlock>
class BlockPass {
 public:
  BlockPass(const float* before, float* after, const BlockShape& shape,
            const BlockQuantizeSpec& spec, const BlockPlan& plan, uint8_t* codes)
      : before_(before),
        after_(after),
        shape_(shape),
        spec_(spec),
        plan_(plan),
        stochastic_(spec.rounding == Rounding::kStochastic),
        round_(plan.element),
        size_(kBlock > 0 ? kBlock : spec.format->block_size),
        codes_(codes) {}

  // Blocks [begin, end) along the rows, counted row by row.
  void round_rows(int64_t begin, int64_t end) const {
    const int64_t blocks = shape_.blocks_along(spec_.format->block_size);
    if constexpr (kBlock == 0) {
      for (; begin < end; ++begin) {
        const int64_t col = begin % blocks * size_;
        const Part line{begin / blocks, 1, col, std::min(size_, shape_.cols - col)};
        const uint8_t code = rounded(line);
        if (codes_ != nullptr) codes_[begin] = code;
      }
      return;
    }
    const int64_t full = shape_.cols / size_;
    RandomRuns random(plan_.element.random, stochastic_);
    while (begin < end) {
      const int64_t row = begin / blocks, b = begin % blocks;
      const int64_t at = row * shape_.cols + b * size_;
      if (b == full) {  // the shorter block at the end of the row
        round_by_definition(at, shape_.cols - full * size_, 1, begin);
        ++begin;
      } else {
        const int64_t count = std::min(full - b, end - begin);
        whole_blocks(at, count, begin, random);
        begin += count;
      }
    }
  }

  // One tile: a row of blocks, kTile columns from `col` on.
  static constexpr int64_t kTile = RandomRuns::kLongest;
  void tile(int64_t block_row, int64_t col) const {
    const DF df;
    const DU du;
    const auto round = round_;
    const VU sign_bit = hn::Set(du, kSignBit);
    const int64_t cols = shape_.cols, first = block_row * size_;
    const int64_t rows = std::min(size_, shape_.rows - first);
    const int64_t width = std::min(kTile, cols - col), whole = width - width % kLanes;
    const int64_t origin = first * cols + col;
    uint32_t largest[kTile];
    std::fill_n(largest, whole, 0u);
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < whole; c += kLanes) {
        const VU bits = hn::BitCast(du, hn::LoadU(df, before_ + origin + r * cols + c));
        const VU so_far = hn::LoadU(du, largest + c);
        hn::StoreU(hn::Max(so_far, hn::AndNot(sign_bit, bits)), du, largest + c);
      }
    }
    float scales[kTile], inverses[kTile];
    bool all_finite = true;
    for (int64_t c = 0; c < whole; ++c) {
      const uint8_t code = plan_.code_of(largest[c]);
      if (codes_ != nullptr) codes_[block_row * cols + col + c] = code;
      scales[c] = plan_.scale[code];
      inverses[c] = plan_.inverse[code];
      all_finite &= code != plan_.code_of.nan_code();
    }
    RandomRuns random(plan_.element.random, stochastic_);
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t at = origin + r * cols;
      const uint32_t* bits = random.at(static_cast<uint64_t>(at), width);
      for (int64_t c = 0; c < whole; c += kLanes) {
        const VF x = hn::LoadU(df, before_ + at + c);
        const VF scale = hn::LoadU(df, scales + c), inverse = hn::LoadU(df, inverses + c);
        VF y = round(x, scale, inverse, bits == nullptr ? hn::Zero(du) : hn::LoadU(du, bits + c));
        if (kPlain && !all_finite) y = hn::IfThenElse(hn::Ne(scale, scale), scale, y);
        hn::StoreU(y, df, after_ + at + c);
      }
    }
    for (int64_t c = whole; c < width; ++c) {
      round_by_definition(origin + c, rows, cols, block_row * cols + col + c);
    }
  }

  // Squares [begin, end), counted row by row; `across` in a row. The codes are those of blocks
  // along rows.
  void squares(int64_t begin, int64_t end, int64_t across) const {
    for (; begin < end; ++begin) {
      const int64_t row = begin / across * size_, col = begin % across * size_;
      const Part square{row, std::min(size_, shape_.rows - row), col,
                        std::min(size_, shape_.cols - col)};
      const uint8_t code = rounded(square);
      if (codes_ == nullptr) continue;
      for (int64_t r = row; r < row + square.rows; ++r) codes_[r * across + begin % across] = code;
    }
  }

 private:
  struct Part {
    int64_t row, rows, col, cols;
  };
  uint32_t largest_bits(const Part& part) const {
    const DF df;
    const DU du;
    const VU sign_bit = hn::Set(du, kSignBit);
    VU largest = hn::Zero(du);
    uint32_t rest = 0;
    for (int64_t r = part.row; r < part.row + part.rows; ++r) {
      const float* x = before_ + r * shape_.cols + part.col;
      int64_t i = 0;
      for (; i + kLanes <= part.cols; i += kLanes) {
        largest = hn::Max(largest, hn::AndNot(sign_bit, hn::BitCast(du, hn::LoadU(df, x + i))));
      }
      for (; i < part.cols; ++i) rest = std::max(rest, std::bit_cast<uint32_t>(x[i]) & ~kSignBit);
    }
    return std::max(rest, hn::GetLane(hn::MaxOfLanes(du, largest)));
  }
  // Rounds the elements of one block; returns its code.
  uint8_t rounded(const Part& part) const {
    const DF df;
    const DU du;
    const auto round = round_;
    const uint8_t code = plan_.code_of(largest_bits(part));
    const VF scale = hn::Set(df, plan_.scale[code]), inverse = hn::Set(df, plan_.inverse[code]);
    const bool is_nan = code == plan_.code_of.nan_code();
    RandomRuns random(plan_.element.random, stochastic_);
    for (int64_t r = part.row; r < part.row + part.rows; ++r) {
      const int64_t at = r * shape_.cols + part.col;
      int64_t i = 0;
      for (; i + kLanes <= part.cols; i += kLanes) {
        const VF x = hn::LoadU(df, before_ + at + i);
        const uint32_t* bits = random.at(static_cast<uint64_t>(at + i), kLanes);
        const VU drawn = bits == nullptr ? hn::Zero(du) : hn::LoadU(du, bits);
        hn::StoreU(kPlain && is_nan ? scale : round(x, scale, inverse, drawn), df, after_ + at + i);
      }
      for (; i < part.cols; ++i) {
        const auto index = static_cast<uint64_t>(at + i);
        const uint32_t drawn = stochastic_ ? stochastic_bits(plan_.element.random, index) : 0;
        after_[at + i] = block_value(
            block_element(before_[at + i], plan_.scale[code], *spec_.format, spec_.rounding, drawn),
            plan_.scale[code]);
      }
    }
    return code;
  }

  // `count` neighbouring blocks in a row, from element `at` on.
  void whole_blocks(int64_t at, int64_t count, int64_t slot, RandomRuns& random) const {
    constexpr int kParts = kBlock / kLanes;
    const DF df;
    const DU du;
    const auto round = round_;
    const ScaleCoder code_of = plan_.code_of;
    const float *scales = plan_.scale.data(), *inverses = plan_.inverse.data();
    const float* before = before_ + at;
    float* after = after_ + at;
    uint8_t* codes = codes_ == nullptr ? nullptr : codes_ + slot;
    const VU sign_bit = hn::Set(du, kSignBit);
    for (int64_t b = 0; b < count; ++b, before += kBlock, after += kBlock) {
      VF x[kParts];
      VU largest = hn::Zero(du);
#pragma GCC unroll 4
      for (int v = 0; v < kParts; ++v) {
        x[v] = hn::LoadU(df, before + v * kLanes);
        largest = hn::Max(largest, hn::AndNot(sign_bit, hn::BitCast(du, x[v])));
      }
      const uint8_t code = code_of(hn::GetLane(hn::MaxOfLanes(du, largest)));
      if (codes != nullptr) codes[b] = code;
      const VF scale = hn::Set(df, scales[code]), inverse = hn::Set(df, inverses[code]);
      const bool is_nan = code == code_of.nan_code();
      const uint32_t* bits = random.at(static_cast<uint64_t>(at + b * kBlock), kBlock);
#pragma GCC unroll 4
      for (int v = 0; v < kParts; ++v) {
        const VU r = bits == nullptr ? hn::Zero(du) : hn::LoadU(du, bits + v * kLanes);
        const VF y = kPlain && is_nan ? scale : round(x[v], scale, inverse, r);
        hn::StoreU(y, df, after + v * kLanes);
      }
    }
  }

  void round_by_definition(int64_t at, int64_t size, int64_t stride, int64_t slot) const {
    const uint8_t code =
        scalar_round_block(before_ + at, after_ + at, size, stride, static_cast<uint64_t>(at),
                           spec_, plan_.element.random, plan_.code_of.tensor_scale);
    if (codes_ != nullptr) codes_[slot] = code;
  }

  const float* before_;
  float* after_;
  const BlockShape& shape_;
  const BlockQuantizeSpec& spec_;
  const BlockPlan& plan_;
  bool stochastic_;
  ElementRounding<kPath, kPlain, kDivides> round_;
  int64_t size_;
  uint8_t* codes_;
};

template <RoundPath kPath, bool kPlain, bool kDivides, int kBlock>
void run_blocks(const float* before, float* after, const BlockShape& shape,
                const BlockQuantizeSpec& spec, const BlockPlan& plan, uint8_t* codes) {
  using Pass = BlockPass<kPath, kPlain, kDivides, kBlock>;
  const Pass pass(before, after, shape, spec, plan, codes);
  const int64_t blocks = shape.blocks_along(spec.format->block_size);
  const int64_t size = std::clamp<int64_t>(shape.along(), 1, spec.format->block_size);
  if (shape.axis == 1) {
    parallel_chunks(shape.rows * blocks, std::max<int64_t>(1, kChunk / size),
                    [&](int64_t begin, int64_t end) { pass.round_rows(begin, end); });
    return;
  }
  const int64_t tiles = (shape.cols + Pass::kTile - 1) / Pass::kTile;
  const int64_t grain = std::max<int64_t>(1, kChunk / (size * Pass::kTile));
  parallel_chunks(blocks * tiles, grain, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) pass.tile(t / tiles, t % tiles * Pass::kTile);
  });
}

template <RoundPath kPath, bool kPlain, bool kDivides>
void run_squares(const float* before, float* after, const BlockShape& shape,
                 const BlockQuantizeSpec& spec, const BlockPlan& plan, uint8_t* codes) {
  const BlockPass<kPath, kPlain, kDivides, 0> pass(before, after, shape, spec, plan, codes);
  const int64_t size = spec.format->block_size,
                across = shape.blocks_along(spec.format->block_size);
  const int64_t down = (shape.rows + size - 1) / size;
  parallel_chunks(down * across, square_grain(size, shape.rows, shape.cols),
                  [&](int64_t begin, int64_t end) { pass.squares(begin, end, across); });
}

// The statistics of one chunk after its rounding, in reduction blocks of the flat array.
class MeasurePass {
 public:
  MeasurePass(const float* before, const float* after, const BlockShape& shape,
              const BlockPlan& plan, const BlockFormat& format, const uint8_t* codes)
      : before_(before),
        after_(after),
        cols_(shape.cols),
        size_(format.block_size),
        blocks_(shape.blocks_along(format.block_size)),
        along_rows_(shape.axis == 1),
        codes_(codes),
        element_(*format.element) {
    for (size_t code = 0; code < plan.scale.size(); ++code) {
      const float scale = plan.scale[code];
      max_finite_[code] = std::bit_cast<uint32_t>(block_value(element_.max_finite, scale));
      min_normal_[code] =
          std::max(std::bit_cast<uint32_t>(block_value(element_.min_normal(), scale)), 1u);
    }
  }

  void measure(int64_t begin, int64_t end, TensorStats& part,
               BlockSums<kQuantizeSums>* sums) const {
    ChunkCounts counts;
    ExponentHistogram histogram(kCountSliced);
    for (; begin < end; begin += kReductionBlock, ++sums) {
      const int64_t count = std::min(end - begin, kReductionBlock), rows = count / kRow;
      HWY_ALIGN uint8_t exponents[kReductionBlock];
      uint32_t max_finite[kReductionBlock + kRow], min_normal[kReductionBlock + kRow];
      fill_limits(begin, count, max_finite, min_normal);
      VirtualLanes squares, errors;
      measure_rounded_rows({.before = before_ + begin,
                            .after = after_ + begin,
                            .max_finite = max_finite,
                            .min_normal = min_normal,
                            .exponents = exponents,
                            .rows = rows,
                            .first = static_cast<uint64_t>(begin)},
                           counts, squares.lane, errors.lane);
      BlockLook look;
      look.add_rows(before_ + begin, rows);
      histogram.count(exponents, rows * kRow,
                      {static_cast<int>(look.smallest_bits() >> kFloatFraction),
                       static_cast<int>(look.largest_bits() >> kFloatFraction)});
      part.count += static_cast<uint64_t>(rows * kRow);
      for (int64_t i = rows * kRow; i < count; ++i) {
        StatsLimits limits(element_);
        limits.max_finite = std::bit_cast<float>(max_finite[i]);
        limits.min_normal = std::bit_cast<float>(min_normal[i]);
        measure_element(before_[begin + i], after_[begin + i], static_cast<uint64_t>(begin + i),
                        limits, part, squares.lane[i % kRow], errors.lane[i % kRow]);
      }
      sums->sum[kSquares] = squares.join();
      sums->sum[kRoundErrors] = errors.join();
    }
    counts.add_to(part);
    histogram.add_to(part);
  }

 private:
  // `count` places, in whole rows: what follows is filled later, or is spare.
  static HWY_INLINE void fill_rows(uint32_t* to, int64_t count, uint32_t value) {
    const DU du;
    const VU values = hn::Set(du, value);
    for (int64_t i = 0; i < count; i += kLanes) hn::StoreU(values, du, to + i);
  }
  // The limits of elements [begin, begin + count), from the codes of their blocks.
  void fill_limits(int64_t begin, int64_t count, uint32_t* max_finite, uint32_t* min_normal) const {
    int64_t row = begin / cols_, col = begin % cols_;
    for (int64_t i = 0; i < count;) {
      // A run within a row: inside one block, or to the end of the row.
      const int64_t run_end = along_rows_ ? std::min((col / size_ + 1) * size_, cols_) : cols_;
      const int64_t run = std::min(count - i, run_end - col);
      if (along_rows_) {
        const uint8_t code = codes_[row * blocks_ + col / size_];
        fill_rows(max_finite + i, run, max_finite_[code]);
        fill_rows(min_normal + i, run, min_normal_[code]);
      } else {
        const uint8_t* codes = codes_ + row / size_ * cols_ + col;
        for (int64_t j = 0; j < run; ++j) {
          max_finite[i + j] = max_finite_[codes[j]];
          min_normal[i + j] = min_normal_[codes[j]];
        }
      }
      i += run;
      col += run;
      if (col == cols_) {
        col = 0;
        ++row;
      }
    }
  }

  const float *before_, *after_;
  int64_t cols_, size_, blocks_;
  bool along_rows_;
  const uint8_t* codes_;
  const Format& element_;
  std::array<uint32_t, 256> max_finite_, min_normal_;  // magnitude bits, by code
};

using RunBlocks = void (*)(const float*, float*, const BlockShape&, const BlockQuantizeSpec&,
                           const BlockPlan&, uint8_t*);

void round_and_measure(const float* before, float* after, const BlockShape& shape,
                       const BlockQuantizeSpec& spec, const BlockPlan& plan, RunBlocks run,
                       TensorStats* stats, uint8_t* codes) {
  const auto measure = [&](const float* x, const float* y, const uint8_t* used) {
    const MeasurePass pass(x, y, shape, plan, *spec.format, used);
    *stats = TensorStats();
    const auto totals = for_each_chunk<kQuantizeSums>(
        shape.count(), stats,
        [&](int64_t begin, int64_t end, TensorStats& part, BlockSums<kQuantizeSums>* sums) {
          pass.measure(begin, end, part, sums);
        });
    stats->sum_sq = totals.sum[kSquares];
    stats->round_err_sq = totals.sum[kRoundErrors];
  };
  round_and_measure_blocks(
      before, after, shape, *spec.format, stats != nullptr, codes,
      [&](const float* x, float* y, uint8_t* out) { run(x, y, shape, spec, plan, out); }, measure);
}

template <bool kDivides, int kBlock>
RunBlocks blocks_by(const BlockPlan& plan) {
  constexpr RoundPath kMagic = RoundPath::kMagic, kGeneric = RoundPath::kGeneric;
  if (plan.plain) return run_blocks<kMagic, true, kDivides, kBlock>;
  return plan.element.path == kMagic ? run_blocks<kMagic, false, kDivides, kBlock>
                                     : run_blocks<kGeneric, false, kDivides, kBlock>;
}
template <bool kDivides>
RunBlocks squares_by(const BlockPlan& plan) {
  constexpr RoundPath kMagic = RoundPath::kMagic, kGeneric = RoundPath::kGeneric;
  if (plan.plain) return run_squares<kMagic, true, kDivides>;
  return plan.element.path == kMagic ? run_squares<kMagic, false, kDivides>
                                     : run_squares<kGeneric, false, kDivides>;
}

void quantize_blocks(const float* before, float* after, const BlockShape& shape,
                     const BlockQuantizeSpec& spec, float tensor_scale, TensorStats* stats,
                     uint8_t* codes) {
  constexpr int kMxBlock = 32, kNvBlock = 16;
  const BlockPlan plan(spec, tensor_scale);
  const bool divides = plan.code_of.is_e4m3;
  const int size = spec.format->block_size;
  if (plan.element.path == RoundPath::kScalar || (divides && size != kNvBlock)) {
    return scalar_quantize_blocks(before, after, shape, spec, tensor_scale, stats, codes);
  }
  const RunBlocks run = divides            ? blocks_by<true, kNvBlock>(plan)
                        : size == kMxBlock ? blocks_by<false, kMxBlock>(plan)
                                           : blocks_by<false, 0>(plan);
  round_and_measure(before, after, shape, spec, plan, run, stats, codes);
}

void quantize_block_squares(const float* before, float* after, int64_t rows, int64_t cols,
                            const BlockQuantizeSpec& spec, TensorStats* stats) {
  const BlockPlan plan(spec, /*tensor_scale=*/1);
  if (plan.element.path == RoundPath::kScalar) {
    return scalar_quantize_block_squares(before, after, rows, cols, spec, stats);
  }
  const RunBlocks run = plan.code_of.is_e4m3 ? squares_by<true>(plan) : squares_by<false>(plan);
  round_and_measure(before, after, {rows, cols, /*axis=*/1}, spec, plan, run, stats, nullptr);
}

#endif  // LOCKSTEP_SIMD_TARGET
}  // namespace HWY_NAMESPACE
}  // namespace lockstep
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lockstep {

void use_simd_block_quantize(KernelSet& set, SimdTarget target) {
  const bool is_avx2 = target == SimdTarget::kAvx2;
  set.f32.quantize_blocks = is_avx2 ? N_AVX2::quantize_blocks : N_AVX3::quantize_blocks;
  set.f32.quantize_block_squares =
      is_avx2 ? N_AVX2::quantize_block_squares : N_AVX3::quantize_block_squares;
}

}  // namespace lockstep
#endif  // HWY_ONCE
