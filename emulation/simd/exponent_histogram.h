// How often does each exponent byte occur?
// The vector pass writes one exponent byte per element into a block buffer; counting them is a step
// of its own, so that the way of counting can change without touching the pass.
#pragma once

#include <array>
#include <cstdint>

#include "emulation/tensor_stats.h"

namespace lockstep {

// Eight tables, so that runs of one exponent do not wait for each other's increments.
class ExponentHistogram {
 public:
  void count(const uint8_t* exponents, int64_t size) {
    int64_t i = 0;
    for (; i + kTables <= size; i += kTables) {
      for (int t = 0; t < kTables; ++t) ++tables_[t][exponents[i + t]];
    }
    for (; i < size; ++i) ++tables_[0][exponents[i]];
  }
  void add_to(TensorStats& stats) const {
    for (int bin = 0; bin < kHistogramBins; ++bin) {
      for (const auto& table : tables_) stats.exponent_histogram[bin] += table[bin];
    }
  }

 private:
  static constexpr int kTables = 8;
  std::array<std::array<uint32_t, kHistogramBins>, kTables> tables_{};
};

}  // namespace lockstep
