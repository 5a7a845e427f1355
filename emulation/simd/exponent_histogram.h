// How often does each exponent byte occur?
// The vector pass writes one exponent byte per element into a block buffer, in any order; counting
// them is a step of its own: whole blocks in bit planes (see exponent_histogram.cc), a few bytes
// one by one.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "emulation/reduction.h"
#include "emulation/tensor_stats.h"

namespace lockstep {

// Counters of one bin: 64-bit lanes of a vector, of which AVX2 uses four.
inline constexpr int kSlicedLanes = 8;
struct alignas(kSlicedLanes * sizeof(uint64_t)) SlicedBin {
  uint64_t lane[kSlicedLanes];
};
// Bins whose bytes share their high four bits.
inline constexpr int kNibbleBins = 16;

// The exponents of a block: all bytes that are not 0 lie in [low, high].
struct ExponentRange {
  int low, high;
};

// Adds the counts of kReductionBlock bytes to bins[0..255]. Bit h of `touched`: the 16 bins from
// 16 h on are set; the others are cleared before they are first used. Returns the bits of all used
// by now. Requires: `exponents` aligned as a vector.
using CountSlicedFunction = uint32_t (*)(const uint8_t* exponents, ExponentRange range,
                                         uint32_t touched, SlicedBin* bins);
uint32_t avx2_count_sliced(const uint8_t* exponents, ExponentRange range, uint32_t touched,
                           SlicedBin* bins);
uint32_t avx512_count_sliced(const uint8_t* exponents, ExponentRange range, uint32_t touched,
                             SlicedBin* bins);

class ExponentHistogram {
 public:
  explicit ExponentHistogram(CountSlicedFunction count_sliced) : count_sliced_(count_sliced) {}

  // `exponents`: a buffer of kReductionBlock bytes, the first `size` of them set.
  void count(uint8_t* exponents, int64_t size, ExponentRange range) {
    if (size <= kFew) {
      for (int64_t i = 0; i < size; ++i) ++few_[exponents[i]];
      return;
    }
    std::fill(exponents + size, exponents + kReductionBlock, uint8_t{0});
    padding_ += static_cast<uint64_t>(kReductionBlock - size);
    touched_ = count_sliced_(exponents, range, touched_, bins_);
  }
  void add_to(TensorStats& stats) const {
    for (int bin = 0; bin < kHistogramBins; ++bin) {
      uint64_t sum = few_[bin];
      if ((touched_ >> bin / kNibbleBins & 1) != 0) {
        for (const uint64_t lane : bins_[bin].lane) sum += lane;
      }
      stats.exponent_histogram[bin] += sum;
    }
    stats.exponent_histogram[0] -= padding_;
  }

 private:
  static constexpr int64_t kFew = 512;  // one by one they cost about as much as a block in planes
  CountSlicedFunction count_sliced_;
  uint32_t touched_ = 0;
  uint64_t padding_ = 0;
  std::array<uint32_t, kHistogramBins> few_{};
  SlicedBin bins_[kHistogramBins];
};

}  // namespace lockstep
