// How far is a lane from the run that was captured?
// What the real machine recorded beside what a lane computed: the loss scaler's decisions, and the
// norms of the gradients that the optimizer took. Nothing else of the captured run was measured.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "src/record/run_file.h"

namespace lockstep {

// The first step in which one of them found an overflow and the other did not.
struct ScalerDisagreement {
  int64_t step = -1;
  ScalerRecord captured, lane;
};

// Parameters with less than this share of the largest norm are not looked at one by one: what is
// left of a gradient that is all but zero is rounding.
inline constexpr double kSmallNorm = 1e-2;

struct NormComparison {
  int64_t step = -1;              // -1: there is none with finite captured gradients
  double captured = 0, lane = 0;  // over all parameters
  std::string furthest;           // the parameter whose norm is off by the largest factor
  double furthest_ratio = 1;      // of its norm to the captured one
};

struct CapturedComparison {
  std::optional<ScalerDisagreement> disagreement;
  int64_t compared_steps = 0;  // for it: those with a scale in both
  NormComparison first, last;  // of the steps in which the captured gradients are finite
};

// `lane` and `captured` are indices of lanes of a replayed capture.
CapturedComparison compare_with_captured(const RunFile& run, int lane, int captured);

}  // namespace lockstep
