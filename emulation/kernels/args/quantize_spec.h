// Describes how an array is rounded and measured.
#pragma once

#include <cstdint>
#include <functional>

#include "emulation/format/rounding.h"
#include "emulation/stats/tensor_stats.h"

namespace lockstep {

// What the rounded values of an array are compared with, see ErrorStats.
struct ReferenceComparison {
  const float* reference = nullptr;  // as many elements; null: nothing to compare
  double scale = 1;                  // > 0
  const Format* format = nullptr;    // the lane's: of its ulps
  ErrorStats error = {};             // the result, if it is done
  bool done = false;
};

// Writes elements [begin, end) of an array. Called for every element once, on any thread, in any
// order. It may be called inside a parallel_for; one of its own then uses no other thread.
using FillRange = std::function<void(int64_t begin, int64_t end)>;

struct QuantizeSpec {
  const Format* format = nullptr;
  Rounding rounding = Rounding::kNearestEven;
  StochasticKey key = {};  // used by Rounding::kStochastic
  // Nothing is rounded or stored (`after` is not written). The statistics are those of after ==
  // before; `format` decides which values are subnormal. observe() uses this.
  bool measure_only = false;
  // Only the counts of elements are needed: the other statistics mean nothing, and a kernel need
  // not form them.
  bool counts_only = false;
  // Not null: where all statistics are formed, a kernel may also do this comparison and write its
  // result, piece by piece while both arrays are in its cache. It need not.
  ReferenceComparison* comparison = nullptr;
};

}  // namespace lockstep
