// Counts how often each exponent byte occurs.
// The vector pass writes one exponent byte per element into a block buffer, in any order; counting
// them is a separate step: whole blocks in bit planes (see exponent_histogram.cc), a few bytes one
// by one.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "emulation/kernels/reduction.h"
#include "emulation/stats/tensor_stats.h"

namespace lockstep {

// Counters of one bin: 64-bit lanes of a vector, of which AVX2 uses four.
inline constexpr int kSlicedLanes = 8;
struct alignas(kSlicedLanes * sizeof(uint64_t)) SlicedBin {
  uint64_t lane[kSlicedLanes];
};
// Bins whose bytes share their high four bits.
inline constexpr int kNibbleBins = 16;

// The exponents of a block: all bytes that are not 0 are in [low, high].
struct ExponentRange {
  int low, high;
};

// Bit h of `touched`: the 16 bins from 16 h on are set; the others are cleared on their first use.
struct SlicedBins {
  uint32_t touched = 0;
  SlicedBin bin[kHistogramBins];
};
// Adds the counts of kReductionBlock bytes. Returns how many are 0.
// Requires: `exponents` aligned as a vector.
using CountSlicedFunction = uint64_t (*)(const uint8_t* exponents, ExponentRange range,
                                         SlicedBins& bins);
uint64_t avx2_count_sliced(const uint8_t* exponents, ExponentRange range, SlicedBins& bins);
uint64_t avx512_count_sliced(const uint8_t* exponents, ExponentRange range, SlicedBins& bins);

class ExponentHistogram {
 public:
  explicit ExponentHistogram(CountSlicedFunction count_sliced) : count_sliced_(count_sliced) {}

  // `exponents`: a buffer of kReductionBlock bytes, the first `size` of them set. Returns how many
  // of them are 0.
  uint64_t count(uint8_t* exponents, int64_t size, ExponentRange range) {
    if (size <= kFew) {
      const uint32_t zeros_before = few_[0];
      for (int64_t i = 0; i < size; ++i) ++few_[exponents[i]];
      return few_[0] - zeros_before;
    }
    const auto padding = static_cast<uint64_t>(kReductionBlock - size);
    std::fill(exponents + size, exponents + kReductionBlock, uint8_t{0});
    padding_ += padding;
    return count_sliced_(exponents, range, sliced_) - padding;
  }
  void add_to(TensorStats& stats) const {
    for (int bin = 0; bin < kHistogramBins; ++bin) {
      uint64_t sum = few_[bin];
      if ((sliced_.touched >> bin / kNibbleBins & 1) != 0) {
        for (const uint64_t lane : sliced_.bin[bin].lane) sum += lane;
      }
      stats.exponent_histogram[bin] += sum;
    }
    stats.exponent_histogram[0] -= padding_;
  }

 private:
  static constexpr int64_t kFew = 512;  // one by one: about the cost of a block in planes
  CountSlicedFunction count_sliced_;
  uint64_t padding_ = 0;
  std::array<uint32_t, kHistogramBins> few_{};
  SlicedBins sliced_;
};

}  // namespace lockstep
