// The numbers by which a run is compared with a baseline that was drawn or rounded another way: one
// row each. Bits are compared elsewhere (exact.h). A metric survives a change of seed, machine or
// order of sums, because its limit is what such changes did to it (ensemble.h).
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace lockstep {

enum class MetricUnit : uint8_t {
  kShare,     // 0..1, of the values that could have met this fate
  kOctaves,   // log2 of a size
  kDistance,  // from the baseline's, in octaves
  kLoss,      // of the training loss
  kYesNo,     // 1: it happened
};

// Which change is for the worse. kEither: any change beyond the limit.
enum class WorseIf : uint8_t { kMore, kEither };

// What a metric has a number for.
enum class MetricOf : uint8_t { kSite, kParameter, kGroup, kLane };

enum class MetricId : uint8_t {
  kNonfinite,
  kZeros,
  kToZero,
  kSaturated,
  kFirstRounding,
  kRounding,
  kError,
  kFirstMagnitude,
  kMagnitude,
  kExponents,
  kStagnant,
  kSwamped,
  kSumError,
  kFlipped,
  kFirstGradient,
  kGradient,
  kLearningRate,
  kFirstLoss,
  kEndLoss,
  kLossGap,
  kSkipped,
  kLossScale,
  kHeldOutLoss,
  kWrongAnswers,
  kDied,
};

struct Metric {
  MetricId id;
  std::string_view name, help;
  // The start of an alarm's sentence: the subject and its verb, as the unit needs them
  // (alarm_sentence.cc).
  std::string_view words;
  MetricOf of;
  MetricUnit unit;
  WorseIf worse;
  // A change below it does not count, however small the noise was.
  double floor;
  double floor_of_seeds;  // the same between runs from other seeds, whose metrics have heavy tails
  // Taken from the first step alone: nothing has grown yet, so the noise is small, and the first
  // site in the order of execution is the origin.
  bool first_step = false;
  // Only the reference lane and the captured run have it: the other lanes start from the same
  // values.
  bool reference_only = false;
  // Any number above 0 where the baseline's runs had none is an alarm.
  bool zero_tolerance = false;
};

std::span<const Metric> metrics();  // in the order of MetricId
const Metric& metric_row(MetricId id);
const Metric* find_metric(std::string_view name);  // null: no such row

}  // namespace lockstep
