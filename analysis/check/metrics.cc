// See metrics.h.
#include "analysis/check/metrics.h"

#include <algorithm>
#include <array>

namespace lockstep {
namespace {

// Floors. A share of 1e-3 of a tensor is no more than its sampling; a sum of squares has an error
// of up to 2.4e-7 (emulation/stats/tensor_stats.h), 2^-22 of a size, and PyTorch's kernels differ
// in order by as much again.
constexpr double kShareFloor = 1e-3;
constexpr double kSizeFloor = 0x1p-19;      // octaves: 1.3e-6 of a norm
constexpr double kErrorFloor = 0.25;        // octaves: an error 19 % larger
constexpr double kExponentFloor = 0.05;     // octaves
constexpr double kFirstLossFloor = 0x1p-20;
constexpr double kLossFloor = 1e-4;
constexpr double kScaleFloor = 0.01;
constexpr double kRateFloor = 1e-9;  // octaves of a learning rate, which nothing random moves

using Of = MetricOf;
using Unit = MetricUnit;
using Id = MetricId;

constexpr std::array kMetrics = {
    Metric{.id = Id::kNonfinite,
           .name = "nonfinite",
           .help = "share of values that were or became NaN or infinite, in steps not skipped",
           .of = Of::kSite,
           .unit = Unit::kShare,
           .worse = WorseIf::kMore,
           .floor = 0,
           .zero_tolerance = true},
    Metric{.id = Id::kToZero,
           .name = "to_zero",
           .help = "share of nonzero values that were rounded to zero",
           .of = Of::kSite,
           .unit = Unit::kShare,
           .worse = WorseIf::kMore,
           .floor = kShareFloor},
    Metric{.id = Id::kSaturated,
           .name = "saturated",
           .help = "share of values set to the format's largest number",
           .of = Of::kSite,
           .unit = Unit::kShare,
           .worse = WorseIf::kMore,
           .floor = kShareFloor},
    Metric{.id = Id::kFirstRounding,
           .name = "first_rounding",
           .help = "rounding error over size (root mean squares) in the first step",
           .of = Of::kSite,
           .unit = Unit::kOctaves,
           .worse = WorseIf::kMore,
           .floor = kErrorFloor,
           .first_step = true},
    Metric{.id = Id::kRounding,
           .name = "rounding",
           .help = "rounding error over size (root mean squares)",
           .of = Of::kSite,
           .unit = Unit::kOctaves,
           .worse = WorseIf::kMore,
           .floor = kErrorFloor},
    Metric{.id = Id::kError,
           .name = "error",
           .help = "error against the reference lane over the reference's size",
           .of = Of::kSite,
           .unit = Unit::kOctaves,
           .worse = WorseIf::kMore,
           .floor = kErrorFloor},
    Metric{.id = Id::kFirstMagnitude,
           .name = "first_magnitude",
           .help = "root mean square of the values in the first step",
           .of = Of::kSite,
           .unit = Unit::kOctaves,
           .worse = WorseIf::kEither,
           .floor = kSizeFloor,
           .first_step = true,
           .reference_only = true},
    Metric{.id = Id::kMagnitude,
           .name = "magnitude",
           .help = "root mean square of the values",
           .of = Of::kSite,
           .unit = Unit::kOctaves,
           .worse = WorseIf::kEither,
           .floor = kSizeFloor,
           .reference_only = true},
    Metric{.id = Id::kExponents,
           .name = "exponents",
           .help = "distance of the exponents' distribution from the baseline's (Wasserstein)",
           .of = Of::kSite,
           .unit = Unit::kOctaves,
           .worse = WorseIf::kMore,
           .floor = kExponentFloor,
           .reference_only = true},
    Metric{.id = Id::kStagnant,
           .name = "stagnant",
           .help = "share of the updates' energy that the stored value lost",
           .of = Of::kSite,
           .unit = Unit::kShare,
           .worse = WorseIf::kMore,
           .floor = kShareFloor},
    Metric{.id = Id::kSwamped,
           .name = "swamped",
           .help = "share of sampled addends below half an ulp of the sum before them",
           .of = Of::kSite,
           .unit = Unit::kShare,
           .worse = WorseIf::kMore,
           .floor = kShareFloor},
    Metric{.id = Id::kSumError,
           .name = "sum_error",
           .help = "error of sampled sums of products over their size",
           .of = Of::kSite,
           .unit = Unit::kOctaves,
           .worse = WorseIf::kMore,
           .floor = kErrorFloor},
    Metric{.id = Id::kFlipped,
           .name = "flipped",
           .help = "share of recorded decisions that the lane's values would have taken otherwise",
           .of = Of::kSite,
           .unit = Unit::kShare,
           .worse = WorseIf::kMore,
           .floor = kShareFloor},
    Metric{.id = Id::kFirstGradient,
           .name = "first_gradient",
           .help = "norm of a parameter's gradient as the optimizer took it, in the first step",
           .of = Of::kParameter,
           .unit = Unit::kOctaves,
           .worse = WorseIf::kEither,
           .floor = kSizeFloor,
           .first_step = true,
           .reference_only = true},
    Metric{.id = Id::kGradient,
           .name = "gradient",
           .help = "norm of a parameter's gradient as the optimizer took it",
           .of = Of::kParameter,
           .unit = Unit::kOctaves,
           .worse = WorseIf::kEither,
           .floor = kSizeFloor,
           .reference_only = true},
    Metric{.id = Id::kLearningRate,
           .name = "learning_rate",
           .help = "learning rate of a parameter group",
           .of = Of::kGroup,
           .unit = Unit::kOctaves,
           .worse = WorseIf::kEither,
           .floor = kRateFloor,
           .reference_only = true},
    Metric{.id = Id::kFirstLoss,
           .name = "first_loss",
           .help = "training loss of the first step",
           .of = Of::kLane,
           .unit = Unit::kLoss,
           .worse = WorseIf::kEither,
           .floor = kFirstLossFloor,
           .first_step = true},
    Metric{.id = Id::kEndLoss,
           .name = "end_loss",
           .help = "mean training loss at the end of the run",
           .of = Of::kLane,
           .unit = Unit::kLoss,
           .worse = WorseIf::kMore,
           .floor = kLossFloor},
    Metric{.id = Id::kLossGap,
           .name = "loss_gap",
           .help = "mean training loss at the end of the run above the reference lane's",
           .of = Of::kLane,
           .unit = Unit::kLoss,
           .worse = WorseIf::kMore,
           .floor = kLossFloor},
    Metric{.id = Id::kSkipped,
           .name = "skipped",
           .help = "share of steps that the loss scaler skipped",
           .of = Of::kLane,
           .unit = Unit::kShare,
           .worse = WorseIf::kMore,
           .floor = kShareFloor},
    Metric{.id = Id::kLossScale,
           .name = "loss_scale",
           .help = "loss scale, the mean of its logarithm",
           .of = Of::kLane,
           .unit = Unit::kOctaves,
           .worse = WorseIf::kEither,
           .floor = kScaleFloor},
    Metric{.id = Id::kHeldOutLoss,
           .name = "held_out_loss",
           .help = "held-out loss at the end of the run",
           .of = Of::kLane,
           .unit = Unit::kLoss,
           .worse = WorseIf::kMore,
           .floor = kLossFloor},
    Metric{.id = Id::kWrongAnswers,
           .name = "wrong_answers",
           .help = "share of held-out answers that are wrong at the end of the run",
           .of = Of::kLane,
           .unit = Unit::kShare,
           .worse = WorseIf::kMore,
           .floor = kShareFloor},
    Metric{.id = Id::kDied,
           .name = "died",
           .help = "1 if the lane stopped before the end of the run",
           .of = Of::kLane,
           .unit = Unit::kShare,
           .worse = WorseIf::kMore,
           .floor = 0,
           .zero_tolerance = true},
};

}  // namespace

std::span<const Metric> metrics() {
  return kMetrics;
}

const Metric& metric_row(MetricId id) {
  return kMetrics[static_cast<size_t>(id)];
}

const Metric* find_metric(std::string_view name) {
  const auto* const found = std::ranges::find(kMetrics, name, &Metric::name);
  return found == kMetrics.end() ? nullptr : found;
}

}  // namespace lockstep
