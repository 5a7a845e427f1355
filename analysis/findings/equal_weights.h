// Judges a lane in steps that it begins with the reference's weights: step 0, and every step of
// synced mode.
// There the lanes differ by rounding alone, so one step suffices and chaos has no part in it: the
// twin's change of the same step is the noise. Wrong is
//
//   the loss       |loss - reference| > max(kRoundoffs u, kLeastShare), at most kMostShare, of the
//                  reference's loss, or of the reference's scatter from batch to batch if that is
//                  larger; u: the unit roundoff of the coarsest format of the forward pass
//   the gradients  sum err^2 > kWrongGradient^2 sum ref^2 over all weight gradients, if the twin's
//                  are not: only together with a result that amplified an error, to its own size
//                  or more
//
// A result amplified an error if it is wrong by kWrongResult or more although its operands are not:
// by kAmplified times their relative error, and kAmplified times more than in the twin. If it is a
// sum much smaller than its operands, that is cancellation. What caused the error is the rounding
// upstream of it that makes most of the operand's error.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "analysis/findings/finding.h"
#include "src/graph/site.h"
#include "src/train/step_record.h"

namespace lockstep {

// Judgements, not derived.
inline constexpr double kRoundoffs = 16, kLeastShare = 1.0 / 64, kMostShare = 0.25;
inline constexpr double kWrongResult = 0.1, kAmplified = 8, kWrongGradient = 0.5;

// The losses of one step that a lane began with the reference's weights: the one with the largest
// difference.
struct EqualStep {
  int64_t step = -1;  // -1: there was none with finite losses
  double loss = std::numeric_limits<double>::quiet_NaN();
  double of_reference = std::numeric_limits<double>::quiet_NaN();
  double of_twin = std::numeric_limits<double>::quiet_NaN();  // NaN: no twin
  bool has_wrong_loss = false, has_wrong_gradients = false;
  int64_t not_finite = -1;  // the first step in which only the lane's loss is not finite; -1: none
  bool is_wrong() const { return has_wrong_loss || has_wrong_gradients; }
  // Of all weight gradients together, the least of all steps that began with equal weights; 0 in a
  // step that the twin explains.
  double gradient_error = 0;
  double error() const;  // |loss - of_reference| / |of_reference|
};

class EqualWeightsTally {
 public:
  // Both must outlive the object; `formats` by site id, may be empty.
  EqualWeightsTally(int lane, const SiteTable& sites, const std::vector<std::string>& formats);

  // A measured step with equal weights. `twin`: null if there is none. The step with the largest
  // error of the loss is kept.
  void add(int64_t step, const LaneStep& own, const LaneStep& reference, const LaneStep* twin);

  // `losses`: the reference's, of all steps so far.
  EqualStep judged(std::span<const double> losses) const;
  std::optional<Finding> find(std::span<const double> losses) const;

 private:
  // Relative errors of one site: of its values against the reference's, and of its rounding alone.
  struct Errors {
    bool measured = false;
    double of_values = 0, of_rounding = 0, of_twin = 0;
    double size = 0;  // root mean square in the reference
    double effect = 0;
  };
  struct Amplifier {
    int32_t site = -1, operand = -1;
    double gain = 0, shrinking = 1;  // operand's size over the result's
  };
  const Site& site(int32_t id) const { return sites_.sites[static_cast<size_t>(id)]; }
  const Errors& at(int32_t id) const { return errors_[static_cast<size_t>(id)]; }
  double limit() const;
  int32_t measured_at(int32_t operand) const;
  // What an operand's error counts in the result: its size where errors add up, else its share.
  double share_in(const Site& site, int32_t operand) const;
  std::vector<int32_t> operands_of(const Site& output) const;
  std::optional<Amplifier> amplifier_at(const Site& output) const;
  std::vector<Amplifier> amplifiers() const;
  std::vector<bool> leads_to_loss() const;
  std::optional<Amplifier> culprit(bool all_wrong) const;
  int32_t rounding_causing(int32_t site) const;
  int32_t largest_effect(double gap) const;

  int lane_;
  const SiteTable& sites_;
  const std::vector<std::string>& formats_;
  EqualStep step_;
  int64_t not_finite_ = -1;
  std::vector<Errors> errors_;                              // by site id, of step_
  double gradient_error_ = 0, gradient_error_of_twin_ = 0;  // of step_
  double least_gradient_error_ = std::numeric_limits<double>::infinity();
};

}  // namespace lockstep
