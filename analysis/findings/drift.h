// Ranks the roundings that move the loss most, in a lane without any event.
// A lane may be worse than the reference without any event. Then the roundings of its forward pass
// are ranked by what each does to the loss, to first order (src/execute/loss_effect.h), in the
// steps that sampled it. The size of a site is the root mean square over these steps; shares are of
// the sum of all sizes. Values that left the format's range are kept apart from lost digits.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "analysis/findings/finding.h"
#include "src/execute/loss_effect.h"
#include "src/graph/site.h"

namespace lockstep {

inline constexpr size_t kMostDriftSites = 3;  // named: the largest, and those that follow
// The least share of the losses' gap that all sites together must explain. A judgement: effects of
// a step add up over the steps, but not to first order.
inline constexpr double kLeastDrift = 0.01;

// By site: the root mean square over the samples of one part of the effect.
std::vector<double> effect_sizes(std::span<const std::vector<LossEffect>> effects,
                                 double LossEffect::*part, size_t sites);

// `effects`: [sample][site]. Nothing if no rounding was weighed.
std::optional<Finding> find_drift(int lane, std::span<const std::vector<LossEffect>> effects,
                                  const SiteTable& sites, const std::vector<std::string>& formats);

}  // namespace lockstep
