// Rounds and measures a factor of a product while it is packed.
// Packing requests pieces of the array, in any order and on any thread, and receives them rounded
// in scratch memory. Statistics need whole blocks of 4096 elements: the piece with a block's first
// element measures all of the block; the rest of a piece is only rounded. So a block that two
// pieces share is rounded twice and measured once.
//
//   blocks     |-----------|-----------|-----------|-----------|
//   piece            [.....|===========|====]......               . rounded   = measured
//                                           |------> measured for the statistics, not returned
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "emulation/format/stochastic.h"
#include "emulation/kernels/block_pass.h"
#include "emulation/kernels/kernel_set.h"
#include "emulation/kernels/simd/rounding/piece_quantizer.h"

namespace lockstep {

class RoundedOperand {
 public:
  // Requires: `quantizer` is not null.
  RoundedOperand(const float* data, int64_t count, const GemmRounding& how,
                 std::unique_ptr<PieceQuantizer> quantizer)
      : data_(data), count_(count), how_(how), quantizer_(std::move(quantizer)) {
    if (how.stats == nullptr) return;
    *how.stats = TensorStats();
    sums_.resize(static_cast<size_t>((count + kReductionBlock - 1) / kReductionBlock));
  }

  // Measures the whole array now, so that pieces are only rounded later: for short pieces.
  void measure_ahead() {
    if (how_.stats == nullptr || measured_) return;
    parallel_for((count_ + kChunk - 1) / kChunk, [&](int64_t chunk) {
      const int64_t begin = chunk * kChunk, end = std::min(count_, begin + kChunk);
      const auto tally = quantizer_->make_tally();
      quantizer_->measure(begin, end, nullptr, *tally, sums_.data() + begin / kReductionBlock);
      const std::lock_guard lock(mutex_);
      tally->add_to(*how_.stats);
    });
    measured_ = true;
  }

  // Floats of scratch memory that a piece may use in addition to its own.
  static constexpr int64_t kMargin = kReductionBlock + 2 * static_cast<int64_t>(kStochasticGroup);

  // Reads pieces for one task. `measures`: the pieces are read for the first time.
  class Reader {
   public:
    Reader(RoundedOperand& operand, bool measures) : operand_(operand) {
      if (measures && operand.how_.stats != nullptr && !operand.measured_)
        tally_ = operand.quantizer_->make_tally();
    }
    ~Reader() {
      if (tally_ == nullptr) return;
      const std::lock_guard lock(operand_.mutex_);
      tally_->add_to(*operand_.how_.stats);
    }
    Reader(const Reader&) = delete;
    Reader& operator=(const Reader&) = delete;

    // Elements [begin, end), at `out` or in the array itself. The elements before and after `out`
    // are overwritten: kStochasticGroup of them before it, kMargin in all.
    const float* read(int64_t begin, int64_t end, float* out) {
      const RoundedOperand& op = operand_;
      constexpr auto kGroup = static_cast<int64_t>(kStochasticGroup);
      float* const piece = out;
      // From here on, `out` is the place of element `begin`.
      out -= begin % kGroup, begin -= begin % kGroup;
      int64_t measured = end;
      if (tally_ != nullptr) {
        measured = (piece - out + begin + kReductionBlock - 1) / kReductionBlock * kReductionBlock;
      }
      if (measured < end) {
        const int64_t blocks_end = (end + kReductionBlock - 1) / kReductionBlock * kReductionBlock;
        op.quantizer_->measure(measured, std::min(op.count_, blocks_end), out + (measured - begin),
                               *tally_, operand_.sums_.data() + measured / kReductionBlock);
        end = measured;
      }
      if (op.how_.spec.measure_only) return op.data_ + begin + (piece - out);
      const int64_t groups_end = (end + kGroup - 1) / kGroup * kGroup;
      if (begin < end) op.quantizer_->round(begin, std::min(op.count_, groups_end), out);
      return piece;
    }

   private:
    RoundedOperand& operand_;
    std::unique_ptr<PieceTally> tally_;
  };

  // To be called after all pieces are read.
  void finish() {
    if (how_.stats == nullptr) return;
    const BlockSums<kQuantizeSums> totals = join_sums(sums_);
    how_.stats->sum_sq = totals.sum[kSquares];
    how_.stats->round_err_sq = totals.sum[kRoundErrors];
  }

 private:
  const float* data_;
  int64_t count_;
  GemmRounding how_;
  std::unique_ptr<PieceQuantizer> quantizer_;
  std::vector<BlockSums<kQuantizeSums>> sums_;
  std::mutex mutex_;       // guards *how_.stats
  bool measured_ = false;  // all of it, by measure_ahead
};

}  // namespace lockstep
