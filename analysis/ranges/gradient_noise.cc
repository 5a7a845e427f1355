// See gradient_noise.h.
#include "analysis/ranges/gradient_noise.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>

#include "src/record/run/play.h"
#include "src/update/parameter_groups.h"

namespace lockstep {
namespace {

// An average that holds fewer gradients (W1^2 / W2) shows too little of their scatter.
constexpr double kFewestGradients = 4;
// Recorded sums of squares are exact to 2.4e-7, the averages are rounded to FP32 in every step.
constexpr double kSameNorm = 1e-4;
// A share below this cannot be distinguished from the rounding of the sums.
constexpr double kLeastShare = 1e-5;

// Which of an optimizer's states is an average of the gradients, and its numbers.
struct AverageRow {
  std::string_view optimizer, state, beta;
  bool is_normalized;  // gain = 1 - beta; false: 1 - dampening, but 1 for the first gradient
};
constexpr std::array kAverages = {
    AverageRow{
        .optimizer = "sgd", .state = "momentum_buffer", .beta = "momentum", .is_normalized = false},
    AverageRow{.optimizer = "adam", .state = "exp_avg", .beta = "beta1", .is_normalized = true},
    AverageRow{.optimizer = "adamw", .state = "exp_avg", .beta = "beta1", .is_normalized = true},
    AverageRow{.optimizer = "lion", .state = "exp_avg", .beta = "beta2", .is_normalized = true},
};

GradientNoise assumed(std::string why) {
  return {.why_assumed = std::move(why)};
}

struct StateOfAverage {
  AverageOfGradients average;
  int index = 0;  // of the state
};

// Nothing, with the reason in `why`, if the optimizer keeps no average of the gradients themselves.
std::optional<StateOfAverage> state_of(const OptimizerSpec& spec, std::string& why) {
  const auto* const row = std::ranges::find(kAverages, spec.name, &AverageRow::optimizer);
  if (row == kAverages.end()) {
    why = fmt::format("{} keeps no average of gradients", spec.name);
    return std::nullopt;
  }
  const HyperNumbers numbers = numbers_of(spec);
  const double beta = numbers[row->beta];
  if (!(beta > 0)) {
    why = fmt::format("{} without {} keeps no average of gradients", spec.name, row->beta);
    return std::nullopt;
  }
  if (numbers["weight_decay"] != 0 && numbers["decoupled_weight_decay"] == 0) {
    why = "weight_decay is part of the optimizer's average";
    return std::nullopt;
  }
  const auto states = find_optimizer(spec.name).states(numbers, {1});
  const auto state = std::ranges::find(states, row->state, &OptimizerState::name);
  StateOfAverage found{.average = {.beta = beta},
                       .index = static_cast<int>(state - states.begin())};
  if (row->is_normalized) {
    found.average.first_gain = found.average.gain = 1 - beta;
  } else {
    found.average.gain = 1 - numbers["dampening"];
  }
  return found;
}

// What the reference's steps say of its gradients.
class Gradients : public Observer {
 public:
  explicit Gradients(double clip_norm) : clip_norm_(clip_norm) {}

  void on_step(const StepRecord& record) override {
    constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
    const LaneStep& lane = record.lanes[kReferenceIndex];
    std::vector<double>& now = sum_sq_.emplace_back();
    for (const SiteRecord& site : lane.sites) {
      now.push_back(site.measured ? site.stats.sum_sq : kNone);
    }
    clips_sq_.push_back(clip_sq(lane.alive ? lane.gradient_norm : kNone));
    groups_ = std::max(groups_, lane.lr.size());
  }

  // The energy at a site, by step.
  std::vector<double> sum_sq(int32_t site) const {
    std::vector<double> out;
    for (const auto& step : sum_sq_) out.push_back(step[static_cast<size_t>(site)]);
    return out;
  }
  // By which factor gradients were clipped before the optimizer saw them, squared, by step.
  const std::vector<double>& clips_sq() const { return clips_sq_; }
  size_t groups() const { return groups_; }  // of parameters

 private:
  double clip_sq(double norm) const {
    constexpr double kTorchEps = 1e-6;  // clip_grad_norm_: max_norm / (norm + 1e-6), at most 1
    if (clip_norm_ <= 0) return 1;
    const double factor = std::min(1.0, clip_norm_ / (norm + kTorchEps));
    return factor * factor;
  }

  double clip_norm_;
  std::vector<std::vector<double>> sum_sq_;  // [step][site]
  std::vector<double> clips_sq_;
  size_t groups_ = 0;
};

int32_t gradient_site(const RunFile& run, const Graph& step, const std::string& value) {
  const Node* node = step.producer_of(value);
  if (node == nullptr) return -1;
  return run.sites().find(node->id, Point::kOutput, split_value_id(value).second);
}

}  // namespace

GradientNoise noise_of(std::span<const double> gradient_sq, std::span<const double> average_sq,
                       const AverageOfGradients& average) {
  double w1 = 0, w2 = 0, g = 0;   // W1, W2, G
  double scatter = 0, whole = 0;  // sums of tr S and of G / W1 over the steps
  double before = 0;              // |m| of the step before
  for (size_t t = 0; t < gradient_sq.size(); ++t) {
    const double gain = t == 0 ? average.first_gain : average.gain;
    w1 = average.beta * w1 + gain;
    w2 = average.beta * average.beta * w2 + gain * gain;
    g = average.beta * g + gain * gradient_sq[t];
    // m[t] lies within gain |g| of beta m[t-1], or it is another average.
    const double now = std::sqrt(average_sq[t]), step = gain * std::sqrt(gradient_sq[t]);
    const double slack = kSameNorm * (before + now + step);
    if (!(std::abs(now - average.beta * before) <= step + slack) ||
        !(now + average.beta * before >= step - slack)) {
      return assumed("the optimizer's average does not follow from the recorded gradients");
    }
    before = now;
    if (w1 * w1 < kFewestGradients * w2) continue;
    scatter += (g / w1 - average_sq[t] / (w1 * w1)) / (1 - w2 / (w1 * w1));
    whole += g / w1;
  }
  if (whole == 0) {
    return assumed(w1 * w1 < kFewestGradients * w2 ? "too few steps" : "its gradients are zero");
  }
  const double share = scatter / whole;
  if (!(share >= kLeastShare)) return assumed("its gradients do not scatter");
  return {.share = std::min(share, 1.0)};
}

std::vector<GradientNoise> gradient_noise(const RunFile& run, const Graph& step) {
  const RunOptions& options = run.options();
  Gradients gradients(options.clip_norm);
  play_reference(run, gradients);
  // The file names only the numbers of a capture's first group.
  const size_t groups = run.steps() == 0 ? 1 : gradients.groups();
  const bool knows_groups = groups == options.groups.size() + 1;
  std::vector<GradientNoise> out;
  for (const Parameter& parameter : step.parameters) {
    const auto gradient = step.gradients.find(parameter.name);
    if (gradient == step.gradients.end()) continue;
    const size_t group = group_of(parameter, options.groups);
    std::string why;
    const auto state =
        state_of(group == 0 ? options.optimizer : options.groups[group - 1].optimizer, why);
    const int32_t from = gradient_site(run, step, gradient->second);
    if (!knows_groups) why = "the run file does not say which of the capture's groups it is in";
    if (options.micro_steps() > 1 || pass_count(step) > 1) why = "a step adds up several gradients";
    if (options.clip_value > 0) why = "single elements are clipped";
    int32_t to = -1;
    if (why.empty())
      to = run.sites().find_update(parameter.name, Role::kOptimizerState, state->index);
    if (why.empty() && (from < 0 || to < 0)) why = "the run file has no site of it";
    GradientNoise noise;
    if (why.empty()) {
      std::vector<double> gradient_sq = gradients.sum_sq(from);
      for (size_t t = 0; t < gradient_sq.size(); ++t) gradient_sq[t] *= gradients.clips_sq()[t];
      noise = noise_of(gradient_sq, gradients.sum_sq(to), state->average);
    } else {
      noise = assumed(why);
    }
    noise.weight = parameter.name;
    noise.layer = parameter.layer;
    out.push_back(std::move(noise));
  }
  return out;
}

}  // namespace lockstep
