// How much of a step is measured? Plain data.
#pragma once

#include <cstdint>

namespace lockstep {

// What a step records of its sites.
enum class SiteDetail : uint8_t {
  kNothing,
  kCounts,      // what the roundings of its passes did: CountMeasurer
  kEverything,  // all statistics, errors and updates: FullMeasurer
};

struct StepMeasuring {
  SiteDetail detail = SiteDetail::kEverything;
  // With kEverything: some outputs of every sum of products are recomputed exactly
  // (SiteRecord::health of its accumulator site), and roundings are weighed by the loss
  // (SiteRecord::effect); never in FP64 containers.
  bool sample_sums = false;
};

}  // namespace lockstep
