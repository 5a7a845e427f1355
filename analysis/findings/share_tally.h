// Adds up over the steps what happened to the energy at every site of a lane.
// Energy is the sum of squares. Only numbers; lost_shares.h, lost_state.h and swamped_sums.h say
// which of them are findings.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "analysis/findings/finding.h"
#include "analysis/findings/step_evidence.h"
#include "src/graph/site.h"

namespace lockstep {

// Rounding normal numbers loses at most u^2 of the energy, u the unit roundoff: less than this
// times u^2 is not underflow.
inline constexpr double kRoundingTimes = 2;

// A batch so much larger takes 4 bits off the range of a scale that follows it.
inline constexpr double kOutlierTimes = 16;

// Updates come to nothing in a step that loses so much of their energy; a tail of such steps is as
// long as this share of the run.
inline constexpr double kVanishedUpdates = 0.9;
inline constexpr double kLeastTail = 0.1;

// Fewer additions do not show whether they go one way.
inline constexpr int64_t kLeastAddedSteps = 4;

struct SiteShares {
  int64_t steps = 0, zero_steps = 0;    // measured; altogether zero although the reference is not
  int64_t first = -1, last = -1;        // steps with a loss
  double underflow = 0, saturated = 0;  // sums of shares over steps
  int64_t judged_sums = 0;              // of an accumulator: steps in which its error was judged
  // For a gradient that lost values to zero: the error share of the weight gradient made from it,
  // summed over the steps in which it can be judged, and that gradient's site.
  double weight_share = 0;
  int64_t judged_weights = 0;  // such steps
  int32_t weight_gradient = -1;
  int64_t first_addition = -1, last_addition = -1;  // steps in which something was added in vain
  double error_share = 0, error_sq = 0;  // of the last step measured: err_sq / ref_sq, err_sq
  int64_t first_add_step = -1, last_add_step = -1, added_steps = 0;  // with additions
  double additions = 0;                                              // to each element
  uint64_t to_zero = 0, nonzero = 0, ref_zero = 0, ref_count = 0;
  double sum_sq = 0, round_err_sq = 0;                                            // over the steps
  double stagnant_sq = 0, update_sq = 0, ref_stagnant_sq = 0, ref_update_sq = 0;  // unscaled
  // The last steps with updates, as far as nearly all of their energy was lost and FP32 lost less
  // than half of its own: how many, the first one, and what they lost. FP32's loss ends a tail.
  int64_t tail_steps = 0, tail_first = -1;
  double tail_stagnant_sq = 0, tail_update_sq = 0;
  double ref_largest = 0, largest = 0;
  double scale = 1;
  // In the reference: the step with the largest value, and the largest value of any other step.
  int64_t largest_step = -1;
  double ref_second = 0;
  double scale_of_largest = 1, scale_of_first = 1;  // in the largest step, and in step `first`

  // Over the steps measured; of an accumulator over those judged.
  double mean(double sum) const {
    const int64_t over = judged_sums > 0 ? judged_sums : steps;
    return over == 0 ? 0 : sum / static_cast<double>(over);
  }
  void add_update(int64_t step, double lost_sq, double all_sq, double lost_by_reference);
  // What was added without effect, by energy; 0 where FP32 does not do better.
  double lost_additions() const;
  // The same of the tail; 0 if it is a short one.
  double lost_tail() const;
  // The square of the distance from the reference, by what its additions would come to if they were
  // all equal; 0 unless there are several.
  double left_behind() const;
  // The step of a batch that was kOutlierTimes as large as any other and after which the scale of
  // the values fell, if underflow began only then; -1: none.
  int64_t outlier_step() const;
};

class ShareTally {
 public:
  // All must outlive the object. `formats` by site id, may be empty.
  ShareTally(int lane, const SiteTable& sites, const std::vector<std::string>& formats);

  // Steps in which the lane's loss was finite or that were skipped. `same_weights`: the lane and
  // the reference began the step with the same weights, so that errors are the step's own.
  void add(int64_t step, bool skipped, bool same_weights, const StepEvidence& lane,
           const StepEvidence& reference);

  // Error shares of a one-ulp twin in a step, by site id.
  void add_twin(const std::vector<double>& errors);

  const SiteTable& table() const { return sites_; }
  const std::vector<Site>& sites() const { return sites_.sites; }
  const SiteShares& of(const Site& site) const { return shares_[static_cast<size_t>(site.id)]; }
  const SiteShares& of(int32_t site) const { return shares_[static_cast<size_t>(site)]; }
  const std::string& format(int32_t site) const;  // "": not recorded
  // Whether a gradient is rounding noise in the reference: it is far below the layer's largest
  // gradient (of a sum: below its operands), one ulp changes a quarter of it in every step, or all
  // gradients that it is made from are noise.
  bool is_noise(const Site& site) const;

  Finding finding(FindingKind kind, const Site& site, double share) const;

 private:
  bool begins_noise(const Site& site) const;
  bool matters(const Site& stored, const StepEvidence& lane) const;
  double added_error(const Site& site, const StepEvidence& lane) const;
  int32_t rounded_at(int32_t operand, const std::vector<double>& lost) const;
  void follow_to_weights(const Site& gradient, const std::vector<double>& lost,
                         const StepEvidence& lane);

  int lane_;
  const SiteTable& sites_;
  const std::vector<std::string>& formats_;
  std::vector<double> rounding_;              // by site id: what rounding alone may take
  std::vector<std::vector<size_t>> results_;  // by storage site: forward outputs made from it
  std::vector<SiteShares> shares_;            // by site id
  std::vector<double> least_of_twin_;         // by site id, over the steps; empty: no twin
  mutable std::vector<bool> noise_;           // by site id; empty: to be found anew
};

// A share of energy; 0 where the whole is 0 or either is not finite.
double share_of(double part, double whole);
// A site of the backward pass.
bool is_gradient(const Site& site);

}  // namespace lockstep
