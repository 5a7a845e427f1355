// Rounds a value to nearest even in any format.
#pragma once

#include <optional>

#include "emulation/accumulator/fast_round.h"
#include "emulation/format/rounding.h"

namespace lockstep {

// Fast if FastRound supports the format.
class NearestRound {
 public:
  explicit NearestRound(const Format& format) : format_(&format) {
    if (FastRound::covers(format)) fast_.emplace(format);
  }
  double operator()(double x) const {
    return fast_ ? (*fast_)(x) : round_to_format(x, *format_, Rounding::kNearestEven);
  }

 private:
  const Format* format_;
  std::optional<FastRound> fast_;
};

// For values that an op of several kernels passes from one to the next. Without a format, does
// nothing.
template <typename T>
class PartRound {
 public:
  explicit PartRound(const Format* format) {
    if (format != nullptr) round_.emplace(*format);
  }
  T operator()(T x) const { return round_ ? canonical_nan(static_cast<T>((*round_)(x))) : x; }
  void operator()(T* x, int64_t count) const {
    for (int64_t i = 0; round_ && i < count; ++i) x[i] = (*this)(x[i]);
  }

 private:
  std::optional<NearestRound> round_;
};

}  // namespace lockstep
