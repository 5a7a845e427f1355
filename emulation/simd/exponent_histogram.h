// How often does each exponent byte occur?
// The vector pass writes one exponent byte per element into a block buffer; counting them is a step
// of its own, so that the way of counting can change without touching the pass.
#pragma once

#include <array>
#include <cstdint>

#include "emulation/tensor_stats.h"

namespace lockstep {

// Several tables, so that runs of one exponent do not wait for each other's increments; a single
// one for arrays so small that clearing and joining tables would cost more than counting.
class ExponentHistogram {
 public:
  // `elements`: how many will be counted in all.
  explicit ExponentHistogram(int64_t elements) : tables_used_(elements <= kFew ? 1 : kTables) {
    for (int t = 0; t < tables_used_; ++t) tables_[t].fill(0);
  }
  void count(const uint8_t* exponents, int64_t size) {
    int64_t i = 0;
    if (tables_used_ == kTables) {
      for (; i + kTables <= size; i += kTables) {
        for (int t = 0; t < kTables; ++t) ++tables_[t][exponents[i + t]];
      }
    }
    for (; i < size; ++i) ++tables_[0][exponents[i]];
  }
  void add_to(TensorStats& stats) const {
    for (int t = 0; t < tables_used_; ++t) {
      for (int bin = 0; bin < kHistogramBins; ++bin) {
        stats.exponent_histogram[bin] += tables_[t][bin];
      }
    }
  }

 private:
  static constexpr int kTables = 8;
  static constexpr int64_t kFew = 2048;  // elements; one table costs about as much as 100 of them
  std::array<std::array<uint32_t, kHistogramBins>, kTables> tables_;
  int tables_used_;
};

}  // namespace lockstep
