// Predicts where a dynamic loss scale settles.
// A dynamic scale grows until a step overflows, so it settles above the scales at which no step of
// a run overflows (scale_interval.h): with a growth interval of n, about one step in n does. The
// gradients of one FP32 trace say which steps: the backward pass is linear in the loss, so the
// lane's own scaler, a pure state machine, is run on
//
//   found_inf(step) = some gradient's largest magnitude in FP32, times the scale, exceeds the
//                     largest number of the format that the lane has there
//
// Not modelled: that the lane's weights differ from FP32's, the more so after skipped steps.
#pragma once

#include <cstdint>
#include <string>
#include <vector>
#include "src/record/run/run_reader.h"

namespace lockstep {

// Over the second half of the run.
struct SettledScale {
  int lo = 0, hi = 0, mode = 0;  // exponents of 2 of the scales, rounded down
  int64_t skips = 0;
};
struct ScaleCourse {
  std::string lane;
  SettledScale predicted, recorded;
};

// The courses of every lane with one scaler that may skip steps; none if some step was not
// measured.
std::vector<ScaleCourse> scale_courses(const RunFile& run);

}  // namespace lockstep
