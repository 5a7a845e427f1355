// Scores how sensitive each layer is to a low-precision format.
// The scores come from one instrumented run in which every layer is low:
//
//   effect          adjoint times local rounding error, summed over a tensor: what its roundings do
//                   to the loss, to first order (src/execute/loss_effect.h); root mean square over
//                   the sampled steps. Roles of the forward pass; lost digits apart from lost range
//   gradient_error  relative rounding error of the factors of the weight's gradient
//   error_to_noise  the same over the standard deviation of that gradient from batch to batch:
//                   gradient_error / sqrt(share of the noise), gradient_noise.h
//   updates_lost    share of the updates' energy that the stored weights do not take
//   terms           length of the longest sum
//
// Measured, by running one layer, or one role of one layer, low and the rest in FP32
// (measured_sensitivity.h):
//
//   isolated        `synced` lanes, restarted each step from the reference's state: the loss
//                   difference, and the error of all weight gradients, relative and over their
//                   noise
//   accumulated     `free` lanes: the gap of the losses at the end
//
// A score is a variance in units of batch noise, so that the scores of several layers add up:
// (effect / s)^2 + error_to_noise^2, where s is the standard deviation of the loss from one batch
// to the next.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "analysis/cost/network.h"
#include "analysis/ranges/gradient_noise.h"

namespace lockstep {

struct MeasuredSensitivity {
  double loss_error = 0;      // isolated: root mean square over the steps, in units of the loss
  double gradient_error = 0;  // isolated: relative, of all weight gradients together
  double error_to_noise = 0;  // isolated: the same, each over its noise
  double accumulated = 0;     // the gap
};

struct RoleSensitivity {
  std::string layer, format;
  Role role = Role::kActivation;
  double score = 0;
  double effect = 0, range_effect = 0;  // in units of the loss
  double gradient_error = 0;            // relative
  double error_to_noise = 0;
  double updates_lost = 0;  // 0..1
  int64_t terms = 0;
  std::optional<MeasuredSensitivity> measured = {};  // this role of this layer alone
};

struct LayerSensitivity {
  std::string layer, format;
  double score = 0;
  std::optional<MeasuredSensitivity> measured = {};
};

// Below this the score is not trusted.
inline constexpr double kLeastRankCorrelation = 0.7;

// How well scores rank what was measured.
struct RankCorrelation {
  double value = 0;   // Spearman's; NaN: fewer than three measured
  size_t ranked = 0;  // rows in it
};

struct SensitivityTable {
  std::vector<RoleSensitivity> roles;
  std::vector<LayerSensitivity> layers;
  double batch_noise = 0;            // s
  std::vector<GradientNoise> noise;  // of the weights' gradients
  bool is_measured = false;          // the following are set
  MeasuredSensitivity floor;         // the one-ulp twin's
  RankCorrelation of_layers, of_roles;
  bool measured_top_third = false;  // because the score ranked layers badly
};

// The score of a layer that breaks: above any that works.
inline constexpr double kSpoiltScore = 1e12;
// (loss_error / s)^2 + error_to_noise^2, at most kSpoiltScore. `batch_noise`: s.
double score_of(double loss_error, double error_to_noise, double batch_noise);

// Adds the scores of a lane whose layers are in `format`; only `layers`.
void add_scores(const RunFile& run, int lane, const std::string& format, const Network& network,
                const std::vector<std::string>& layers, SensitivityTable& table);

// The row of the weight whose gradient the site's node computes there; null: of none.
const GradientNoise* noise_at(const Site& site, const Graph& step,
                              const std::vector<GradientNoise>& noise);

// Sums over some steps spread over a run, by site.
struct SomeSums {
  std::vector<double> sum_sq, round_err_sq, err_sq, ref_sq;  // what is not finite is left out
  std::vector<double> stagnant_sq, update_sq;  // NaN where some step measured no update
};
SomeSums some_sums(const RunFile& run, int lane);

// Spearman's rank correlation, ties at their mean rank; NaN for fewer than three pairs or without
// any differences.
double rank_correlation(std::span<const double> a, std::span<const double> b);

}  // namespace lockstep
