// One site of a monitored run in one step, and what its exponent histogram says of formats that the
// run does not use. From octaves: a share is exact where the format's limit is a power of two, and
// "at least" where it is not.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string_view>

#include "analysis/ranges/scale_interval.h"
#include "emulation/format/format.h"
#include "src/execute/site_record.h"
#include "src/graph/site.h"

namespace lockstep {

// The op of a site that holds q k^T / sqrt(d), before the softmax.
inline constexpr std::string_view kAttentionLogits = "attention_logits";

// By its name in a monitor's file; null: not a format that Lockstep knows.
const Format* find_known_format(std::string_view name);

// Whether a loss scale multiplies it before the optimizer.
bool is_gradient(Role role);
// Of a module that casts to FP8 (its class says so), or held in a format of 8 bits.
bool is_quantised(const Site& site, const Format* format);

// The values without the loss scale. Bins that a scale shifts out of the range stay at its ends; a
// scale that is not a power of two shifts by its exponent, rounded down.
RangeSample unscaled_sample(const Site& site, const SiteRecord& record);

// The largest k at which no value of the sample is above the format's largest number times 2^-k.
// Requires: abs_max > 0.
int scale_to_fit(double abs_max, const Format& format);

struct LiveSite {
  const Site& site;
  const SiteRecord& record;
  const Format* format;                                // of its values in the run; null: unknown
  bool step_is_skipped = false, step_is_idle = false;  // idle: skipped, or a learning rate of 0

  bool is_gradient() const { return lockstep::is_gradient(site.role); }
  bool is_quantised() const { return lockstep::is_quantised(site, format); }
  uint64_t nonfinite() const { return record.stats.exponent_histogram[kHistogramBins - 1]; }
  // Octaves from the largest value to the largest number of the format in which it is held; nothing
  // where it is not finite, or the format is unknown.
  std::optional<double> headroom() const;
  // The largest magnitude, without the loss scale; infinite where that is 0.
  double largest() const { return record.stats.abs_max / record.scale; }
  // Share of the nonzero values in octaves above that of `limit`, a number without the loss scale.
  // Requires: limit > 0, finite.
  double share_above(double limit) const;
  // Share of the nonzero values that become zero in `other` when the largest one fills it.
  double zeroed_share(const Format& other) const;
};

// The largest values of a tensor in the last 16 measured steps, from which delayed scaling takes
// its scale.
class DelayedScale {
 public:
  // At least the share of this step's nonzero values that such a scale saturates: those in octaves
  // above the largest value so far; then this step is one of those. 0: there was none before.
  double saturated_share(const LiveSite& now);
  // The largest of the steps before the last one that was given; 0: there was none.
  double largest_before() const { return largest_before_; }

 private:
  double largest_before_ = 0;
  std::deque<double> history_;
};

}  // namespace lockstep
