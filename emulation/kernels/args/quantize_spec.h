// Describes how an array is rounded and measured.
#pragma once

#include "emulation/format/rounding.h"
#include "emulation/stats/tensor_stats.h"

namespace lockstep {

struct QuantizeSpec {
  const Format* format = nullptr;
  Rounding rounding = Rounding::kNearestEven;
  StochasticKey key = {};  // used by Rounding::kStochastic
  // Nothing is rounded or stored (`after` is not written). The statistics are those of after ==
  // before; `format` decides which values are subnormal. observe() uses this.
  bool measure_only = false;
  // Only the counts of elements are wanted: whatever else the statistics hold means nothing, and a
  // kernel need not form it.
  bool counts_only = false;
};

}  // namespace lockstep
