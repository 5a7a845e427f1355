// How much does each layer mind a format?
// Scored, from one instrumented run in which every layer is low:
//
//   effect          adjoint times local rounding error, summed over a tensor: what its roundings do
//                   to the loss, to first order (src/execute/loss_effect.h); root mean square over
//                   the sampled steps. Roles of the forward pass; lost digits apart from lost range
//   gradient_error  relative rounding error of the factors of the weight's gradient. The examples
//                   of a batch scatter as much as they are large, so this is also the error of dW
//                   relative to its batch noise
//   updates_lost    share of the updates' energy that the stored weights do not take
//   terms           length of the longest sum
//
// Measured, by running one layer low and the rest in FP32:
//
//   isolated        `synced` lanes: the difference of the losses, in each step from the reference's
//                   weights and inputs, and the relative error of all weight gradients
//   accumulated     `free` lanes: the gap of the losses at the end
//
// A layer's score is a variance in units of batch noise, so that the scores of several layers add
// up: (effect / s)^2 + gradient_error^2, where s is the standard deviation of the loss from one
// batch to the next.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "analysis/recommend/network.h"
#include "analysis/recommend/trial_runs.h"

namespace lockstep {

struct RoleSensitivity {
  std::string layer, format;
  Role role = Role::kActivation;
  double effect = 0, range_effect = 0;  // in units of the loss
  double gradient_error = 0;            // relative
  double updates_lost = 0;              // 0..1
  int64_t terms = 0;
};

struct MeasuredSensitivity {
  double loss_error = 0;      // isolated: root mean square over the steps, in units of the loss
  double gradient_error = 0;  // isolated: relative, of all weight gradients together
  double accumulated = 0;     // the gap
};

struct LayerSensitivity {
  std::string layer, format;
  double score = 0;
  std::optional<MeasuredSensitivity> measured = {};
};

struct SensitivityTable {
  std::vector<RoleSensitivity> roles;
  std::vector<LayerSensitivity> layers;
  double batch_noise = 0;           // s
  bool is_measured = false;         // the following are set
  MeasuredSensitivity floor;        // the one-ulp twin's
  double rank_correlation = 0;      // of score and measurement; NaN: fewer than three measured
  size_t ranked = 0;                // layers in it
  bool measured_top_third = false;  // because the score ranked badly
};

// Below this the score is not trusted.
inline constexpr double kLeastRankCorrelation = 0.7;

// Adds the scores of a lane whose layers are in `format`; only `layers`.
void add_scores(const RunFile& run, int lane, const std::string& format, const Network& network,
                const std::vector<std::string>& layers, SensitivityTable& table);

// Runs some of the table's layers alone (the highest and lowest scores and some between, of each
// format), then, if the score ranks them badly, the rest of the top third. Where a layer has been
// measured, its score becomes the measurement. `scale_exponents`: a static loss scale for the
// formats that need one.
// `may_go_on`: asked before each replay. Throws: as TrialRuns::measure.
void measure_some(TrialRuns& runs, const Network& network,
                  const std::map<std::string, int>& scale_exponents,
                  const std::function<bool()>& may_go_on, SensitivityTable& table);

// Spearman's rank correlation, ties at their mean rank; NaN for fewer than three pairs or without
// any differences.
double rank_correlation(std::span<const double> a, std::span<const double> b);

}  // namespace lockstep
