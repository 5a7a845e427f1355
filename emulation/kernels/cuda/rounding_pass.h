// Rounds and measures an array in a device's memory.
// Plain functions for the host and the GPU. Rounding, random bits and what an element adds to a
// statistic are the sources of the host's definition (element_rounder.h, element_stats.h). Two
// kernels: FindRanges reads the array, MeasureLanes reads it again, rounds, measures and stores.
// RoundElements only rounds. The host joins the sums of the lanes. Knows nothing of launches and
// copies.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>

#include "emulation/accumulator/aligned_block_core.h"
#include "emulation/format/float_format.h"
#include "emulation/kernels/cuda/checked_array.h"
#include "emulation/kernels/cuda/model_product.h"
#include "emulation/kernels/cuda/narrow_code.h"
#include "emulation/kernels/cuda/shared_number.h"
#include "emulation/kernels/element_stats.h"
#include "emulation/kernels/scalar/rounding/element_rounder.h"
#include "emulation/stats/tensor_stats.h"
#include "src/core/host_device.h"

namespace lockstep::cuda {

// The FP32 number of an FP16 code.
LOCKSTEP_HOST_DEVICE inline float widen_half(uint32_t code) {
  constexpr BlockEncoding kHalf = register_encoding(BlockOutput::kFp16NearestEven);
  const BlockFactor f = decode_bits(code, kHalf);
  const uint32_t sign = f.negative ? kFloatSignBit : 0;
  if (f.what == BlockFactor::Class::kNan) return std::bit_cast<float>(kFloatNan);
  if (f.what == BlockFactor::Class::kInfinite) return std::bit_cast<float>(sign | kFloatInfinity);
  const int field = f.exponent - kHalf.fraction_bits() + kFloatBias;  // of 2^-24 or more
  const float unit =
      std::bit_cast<float>(sign | static_cast<uint32_t>(field) << kFloatFractionBits);
  return static_cast<float>(f.significand) * unit;
}

// An array of FP32 words, or of FP16 words: matrices (rows, columns) whose elements are counted row
// by row. In memory rows are `row_step` words apart, matrices `matrix_step`.
struct NumbersOnDevice {
  Words words;
  int64_t count = 0;
  int64_t rows = 1, columns = 1;
  int64_t row_step = 1, matrix_step = 1;

  LOCKSTEP_HOST_DEVICE float operator()(int64_t i) const {
    const uint32_t word = words.load(place(i));
    return words.bytes == 2 ? widen_half(word) : std::bit_cast<float>(word);
  }

 private:
  LOCKSTEP_HOST_DEVICE int64_t place(int64_t i) const {
    if (row_step == columns && matrix_step == rows * columns) return i;  // dense
    const int64_t row = i / columns;
    return row / rows * matrix_step + row % rows * row_step + i % columns;
  }
};

// after[i] = round(before[i]).
struct RoundElements {
  NumbersOnDevice before;
  ElementRounder<float> rounder;
  Words after;      // FP32 words, or codes of 1 or 2 bytes; no data: nothing is stored
  NarrowCode code;  // of the codes

  LOCKSTEP_HOST_DEVICE int64_t count() const { return before.count; }
  LOCKSTEP_HOST_DEVICE void operator()(int64_t i) const { rounded(before(i), i); }
  // The rounded x = before[i].
  LOCKSTEP_HOST_DEVICE float rounded(float x, int64_t i) const {
    const float y = rounder(x, static_cast<uint64_t>(i));
    if (after.data != nullptr) {
      after.store(i, after.bytes == 4 ? std::bit_cast<uint32_t>(y) : code(y));
    }
    return y;
  }
};

// Calls `index` of the kernels below is virtual lane index % 16 of block index / 16, as in
// emulation/kernels/reduction.h.
LOCKSTEP_HOST_DEVICE constexpr int64_t lane_count(int64_t count) {
  return (count + kReductionBlock - 1) / kReductionBlock * kReductionLanes;
}
// The elements of a block.
struct BlockSpan {
  int64_t begin, size;

  LOCKSTEP_HOST_DEVICE BlockSpan(int64_t index, int64_t count)
      : begin(index / kReductionLanes * kReductionBlock),
        size(count - begin < kReductionBlock ? count - begin : kReductionBlock) {}
};

// 1. The least nonzero and the largest magnitude of every lane.
struct FindRanges {
  NumbersOnDevice before;
  CheckedArray<MagnitudeRange> ranges;

  LOCKSTEP_HOST_DEVICE int64_t count() const { return lane_count(before.count); }
  LOCKSTEP_HOST_DEVICE void operator()(int64_t index) const {
    const BlockSpan block(index, before.count);
    MagnitudeRange range;
    for (int64_t i = index % kReductionLanes; i < block.size; i += kReductionLanes) {
      range.add(before(block.begin + i));
    }
    ranges[index] = range;
  }
};

// The histogram's bins, and what one lane counts: the fields of TensorStats for count_element.
struct SharedBins {
  struct Bin {
    uint64_t& number;
    LOCKSTEP_HOST_DEVICE void operator++() { add_to_shared(number, 1); }
  };
  TensorStats* stats;
  LOCKSTEP_HOST_DEVICE Bin operator[](size_t bin) const { return {stats->exponent_histogram[bin]}; }
};
struct LaneCounts {
  SharedBins exponent_histogram;
  uint64_t count = 0, source_zero = 0, to_zero = 0, to_subnormal = 0, to_infinity = 0,
           saturated = 0, nan = 0, inexact = 0, bits_hash = 0;
  double abs_max = 0, abs_min_nonzero = std::numeric_limits<double>::infinity();

  LOCKSTEP_HOST_DEVICE void add_to(TensorStats& all) const {
    add_to_shared(all.count, count);
    add_to_shared(all.source_zero, source_zero);
    add_to_shared(all.to_zero, to_zero);
    add_to_shared(all.to_subnormal, to_subnormal);
    add_to_shared(all.to_infinity, to_infinity);
    add_to_shared(all.saturated, saturated);
    add_to_shared(all.nan, nan);
    add_to_shared(all.inexact, inexact);
    add_to_shared(all.bits_hash, bits_hash);
    raise_shared(all.abs_max, abs_max);
    lower_shared(all.abs_min_nonzero, abs_min_nonzero);
  }
};

// Two sums of a lane.
struct MeasuredSums {
  double squares, errors;
};

// 2. Rounds, stores and measures. Blocks share the records of `counts`, which start as
// TensorStats(): less waiting of calls for each other than at one record.
struct MeasureLanes {
  RoundElements round;
  StatsLimits limits;
  CheckedArray<MagnitudeRange> ranges;
  CheckedArray<TensorStats> counts;
  CheckedArray<MeasuredSums> sums;  // of every lane

  LOCKSTEP_HOST_DEVICE int64_t count() const { return lane_count(round.before.count); }
  LOCKSTEP_HOST_DEVICE void operator()(int64_t index) const {
    const BlockSpan block(index, round.before.count);
    const int64_t lane = index % kReductionLanes;
    MagnitudeRange range;
    for (int64_t l = 0; l < kReductionLanes; ++l) range.merge(ranges[index - lane + l]);
    LaneSums own(range, block.size, limits);
    TensorStats& all = counts[index / kReductionLanes % counts.count];
    LaneCounts mine{{&all}};
    for (int64_t i = lane; i < block.size; i += kReductionLanes) {
      const float x = round.before(block.begin + i);
      const float y = round.rounded(x, block.begin + i);
      count_element(x, y, static_cast<uint64_t>(block.begin + i), limits, mine);
      own.add(i, x, y);
    }
    mine.add_to(all);
    sums[index] = {own.squares(), own.errors()};
  }
};

}  // namespace lockstep::cuda
