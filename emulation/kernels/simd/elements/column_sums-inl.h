// Sums down the columns of rows, in the shape of emulation/kernels/reduction.h: a vector holds
// neighbouring columns, and the 16 virtual lanes are 16 rows of vectors. For accumulators whose
// addition is T's own. Included once per instruction set.
#if defined(LOCKSTEP_SIMD_COLUMN_SUMS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LOCKSTEP_SIMD_COLUMN_SUMS_INL_H_
#undef LOCKSTEP_SIMD_COLUMN_SUMS_INL_H_
#else
#define LOCKSTEP_SIMD_COLUMN_SUMS_INL_H_
#endif

#include <algorithm>
#include <utility>
#include <vector>

#include "emulation/accumulator/fast_round.h"
#include "emulation/kernels/reduction.h"
#include "emulation/kernels/scalar/elements/reduce.h"
#include "emulation/kernels/simd/vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lockstep {
namespace HWY_NAMESPACE {
#if LOCKSTEP_SIMD_TARGET

// The sums of `columns` neighbouring columns: the rows of a block are added to lane(0), lane(1),
// ... and back to lane(0); then end_block().
template <typename T>
class ColumnSums {
 public:
  explicit ColumnSums(int64_t columns)
      : columns_(columns),
        lanes_(static_cast<size_t>(kReductionLanes * columns)),
        blocks_(static_cast<size_t>(columns)) {}

  // The sums of row `row` of a block, one for every column.
  HWY_INLINE T* lane(int64_t row) { return lanes_.data() + row % kReductionLanes * columns_; }

  HWY_NOINLINE void end_block() {
    T* lanes = lanes_.data();
    for (int64_t half = kReductionLanes / 2; half > 0; half /= 2) {
      const int64_t count = half * columns_;
      for_vectors<T>(count, [&](auto at, int64_t i) HWY_ATTR {
        at.store(hn::Add(at.load(lanes + i), at.load(lanes + count + i)), lanes + i);
      });
    }
    for (size_t i = 0; i < blocks_.size(); ++i) blocks_[i].push_back(canonical_nan(lanes_[i]));
    std::fill(lanes_.begin(), lanes_.end(), T(0));
  }

  void store(T* sums, const Accumulator& accumulator) {
    for (std::vector<double>& blocks : blocks_) {
      *sums++ = static_cast<T>(join_block_sums(std::move(blocks), accumulator));
    }
  }

 private:
  int64_t columns_;
  std::vector<T> lanes_;                     // (16, columns)
  std::vector<std::vector<double>> blocks_;  // of each column
};

// Calls add(row, row of its block) for each of the rows, in blocks; `sums` ends each.
template <typename Add, typename... Sums>
HWY_INLINE void for_rows_in_blocks(int64_t rows, Add add, Sums&... sums) {
  for (int64_t begin = 0; begin < rows; begin += kReductionBlock) {
    const int64_t end = std::min(rows, begin + kReductionBlock);
    for (int64_t row = begin; row < end; ++row) add(row, row - begin);
    (sums.end_block(), ...);
  }
}

#endif  // LOCKSTEP_SIMD_TARGET
}  // namespace HWY_NAMESPACE
}  // namespace lockstep
HWY_AFTER_NAMESPACE();

#endif  // toggle
