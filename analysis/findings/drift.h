// Ranks the roundings that move the loss most, in a lane without any event.
// A lane may be worse than the reference without any event. Then the roundings of its forward pass
// are ranked by what each does to the loss, to first order (src/execute/loss_effect.h), in the
// steps that sampled it. The size of a site is the root mean square over these steps; shares are of
// the sum of all sizes. Values that left the format's range are kept apart from lost digits.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "analysis/findings/finding.h"
#include "analysis/run/run_view.h"
#include "src/execute/loss_effect.h"
#include "src/graph/site.h"
#include "src/train/observer.h"

namespace lockstep {

inline constexpr size_t kMostDriftSites = 3;  // named: the largest, and those that follow
// The least share of the losses' gap that all sites together must explain. A judgement: effects of
// a step add up over the steps, but not to first order.
inline constexpr double kLeastDrift = 0.01;

// Adds up what the roundings of one lane do to the loss, in the steps that sampled it.
class LossEffectTally : public Observer {
 public:
  // What `run` refers to must outlive the object.
  LossEffectTally(const RunView& run, int lane) : run_(run), lane_(lane) {}
  void on_step(const StepRecord& record) override;
  int64_t samples() const { return samples_; }
  // By site: the root mean square over the samples of one part of the effect; NaN of a lane that
  // died before the last one.
  std::vector<double> sizes(double LossEffect::*part) const;

 private:
  RunView run_;
  int lane_;
  int64_t samples_ = 0;
  std::vector<LossEffect> squares_;  // by site; sums
};

// The effects in a lane of a file. Cost: reads the sampled steps.
LossEffectTally loss_effects(const RunFile& run, int lane);

// Nothing if no rounding was weighed.
std::optional<Finding> find_drift(int lane, const LossEffectTally& effects, const SiteTable& sites,
                                  const std::vector<std::string>& formats);

}  // namespace lockstep
