// How is an array to be rounded and measured?
#pragma once

#include "emulation/format/rounding.h"
#include "emulation/stats/tensor_stats.h"

namespace lockstep {

struct QuantizeSpec {
  const Format* format = nullptr;
  Rounding rounding = Rounding::kNearestEven;
  StochasticKey key = {};  // used by Rounding::kStochastic
  // Nothing is rounded or stored (`after` is not touched): the statistics are those of after ==
  // before, `format` tells subnormals apart. This is what observe() asks for.
  bool measure_only = false;
};

}  // namespace lockstep
