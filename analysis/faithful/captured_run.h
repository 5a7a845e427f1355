// The distance of a lane from the run that was captured.
// Compares losses, the loss scaler's decisions and the norms of the gradients that the optimizer
// took. The real machine recorded nothing else.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>
#include "src/record/run/run_reader.h"

namespace lockstep {

// The first step in which one of them found an overflow and the other did not.
struct ScalerDisagreement {
  int64_t step = -1;
  ScalerRecord captured, lane;
};

// Parameters with less than this share of the largest norm are not compared one by one: a gradient
// that is almost zero consists of rounding errors.
inline constexpr double kSmallNorm = 1e-2;

struct NormComparison {
  int64_t step = -1;  // -1: no step has finite captured gradients
  // Over all parameters with a captured gradient; NaN: a gradient of the lane is not finite, or the
  // lane took no step.
  double captured = 0, lane = 0;
  std::string furthest;       // the parameter whose norm differs by the largest factor
  double furthest_ratio = 1;  // of its norm to the captured one
};

// For the lane that does what PyTorch did (kCapturedEqual): the largest distance of the two losses
// that rounding explains. In step t, with the largest distances of all steps up to t,
//   bound = max(kLossFloor |captured|, kTwinTimes |twin - FP32| if there is a twin lane,
//               under autocast kFp32Share |captured - FP32|, as in gate V7)
// The floor covers not a step's rounding error but an event: one activation that rounds to the
// other side of a relu, which need not happen in the one twin. It moved a U-Net's loss by 2e-4
// within 8 steps whose twin stayed within 1e-7; the floor is five times that.
inline constexpr double kLossFloor = 1e-3, kTwinTimes = 3, kFp32Share = 0.5;

struct LossComparison {
  int64_t compared_steps = 0;                // those with a finite captured loss
  int64_t departure = -1;                    // the first step beyond the bound, -1: none
  int64_t step = -1;                         // that step, or the one nearest to its bound
  double captured = 0, lane = 0, bound = 0;  // losses of `step`
};

// The norms of one step by parameter, NaN where there is none; `lane` of the parameters that
// `captured` has.
NormComparison compare_norms(int64_t step, std::span<const double> captured,
                             std::span<const double> lane, const std::vector<Parameter>& names);

// Requires: all of one length; `twin` may be empty.
LossComparison compare_losses(std::span<const double> captured, std::span<const double> lane,
                              std::span<const double> fp32, std::span<const double> twin,
                              bool is_low);

struct CapturedComparison {
  std::optional<LossComparison> losses;  // only of the lane that does what PyTorch did
  std::optional<ScalerDisagreement> disagreement;
  int64_t compared_steps = 0;  // for `disagreement`: those with a scale in both
  NormComparison first, last;  // of the steps in which the captured gradients are finite
};

// `lane` and `captured` are indices of lanes of a replayed capture.
CapturedComparison compare_with_captured(const RunFile& run, int lane, int captured);

}  // namespace lockstep
