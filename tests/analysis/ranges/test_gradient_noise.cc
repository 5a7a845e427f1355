// The scatter of gradients from an optimizer's average, against gradients of known scatter.
#include "analysis/ranges/gradient_noise.h"

#include <doctest/doctest.h>

#include <cmath>
#include <random>

#include "analysis/cost/network.h"
#include "tests/analysis/recorded_run.h"

namespace lockstep {
namespace {

using testing::record;
using testing::small_run;
using testing::TempDir;

constexpr int kDimensions = 20;

// |g|^2 and |m|^2 of `steps` gradients of mean (drift t, 1, 1, ...) and deviation 2 in every
// element.
struct Course {
  std::vector<double> gradient_sq, average_sq;
};
Course course(const AverageOfGradients& average, int steps, double drift, std::mt19937_64& dice) {
  std::normal_distribution<double> noise(0, 2);
  Course out;
  std::vector<double> m(kDimensions);
  for (int t = 0; t < steps; ++t) {
    double g_sq = 0, m_sq = 0;
    for (int i = 0; i < kDimensions; ++i) {
      const double g = (i == 0 ? 1 + drift * t : 1) + noise(dice);
      m[i] = average.beta * m[i] + (t == 0 ? average.first_gain : average.gain) * g;
      g_sq += g * g;
      m_sq += m[i] * m[i];
    }
    out.gradient_sq.push_back(g_sq);
    out.average_sq.push_back(m_sq);
  }
  return out;
}

TEST_CASE("the share of noise has no bias, for momentum, dampening and a normalised average") {
  std::mt19937_64 dice(7);
  // tr S = 20 * 2^2, |mu|^2 = 20: the share is 0.8.
  const double truth = 80.0 / (80 + 20);
  const AverageOfGradients averages[] = {{.beta = 0.9},
                                         {.beta = 0.9, .first_gain = 1, .gain = 0.5},
                                         {.beta = 0.9, .first_gain = 0.1, .gain = 0.1},
                                         {.beta = 0.5}};
  for (const AverageOfGradients& average : averages) {
    CAPTURE(average.beta);
    CAPTURE(average.gain);
    constexpr int kRuns = 200;
    double sum = 0, square = 0;
    for (int run = 0; run < kRuns; ++run) {
      const Course c = course(average, 40, 0, dice);
      const GradientNoise noise = noise_of(c.gradient_sq, c.average_sq, average);
      if (average.beta == 0.5) {  // of about three gradients: too few
        CHECK(noise.why_assumed == "too few steps");
        continue;
      }
      CHECK(noise.is_measured());
      sum += noise.share;
      square += noise.share * noise.share;
    }
    if (average.beta == 0.5) continue;
    const double mean = sum / kRuns;
    const double of_mean = std::sqrt((square / kRuns - mean * mean) / kRuns);
    CHECK(of_mean < 0.01);
    // Five standard errors; the ratio of two means has a bias of the order of their variance.
    const double of_one = of_mean * of_mean * kRuns;
    CHECK(std::abs(mean - truth) < 5 * of_mean + of_one);
  }
}

TEST_CASE("a mean that drifts within the average's memory counts as scatter") {
  std::mt19937_64 dice(8);
  const AverageOfGradients average{.beta = 0.9};
  const Course still = course(average, 60, 0, dice), drifting = course(average, 60, 1, dice);
  // In the drifting course |mu|^2 grows to 60^2, so that the true share falls below 0.1.
  const double share = noise_of(drifting.gradient_sq, drifting.average_sq, average).share;
  CHECK(share < noise_of(still.gradient_sq, still.average_sq, average).share);
  double whole = 0;
  for (const double sq : drifting.gradient_sq) whole += sq;
  CHECK(share > 80 * 60 / whole);
}

TEST_CASE("what is no average of the recorded gradients is not used") {
  const AverageOfGradients average{.beta = 0.9};
  const std::string follows_not =
      "the optimizer's average does not follow from the recorded gradients";
  std::mt19937_64 dice(9);
  Course c = course(average, 40, 0, dice);
  // From an average that had begun before.
  std::vector<double> begun = c.average_sq;
  begun[0] *= 4;
  CHECK(noise_of(c.gradient_sq, begun, average).why_assumed == follows_not);
  // A gradient clipped to a tenth of its norm.
  std::vector<double> clipped = c.gradient_sq;
  clipped[20] *= 1e4;
  CHECK(noise_of(clipped, c.average_sq, average).why_assumed == follows_not);
  // The same gradient in every step: |m|^2 = ((1 - beta^t) / (1 - beta))^2 |g|^2.
  std::vector<double> same(40, 3.0), sums;
  double w = 0;
  for (size_t t = 0; t < same.size(); ++t) {
    w = 0.9 * w + 1;
    sums.push_back(3.0 * w * w);
  }
  CHECK(noise_of(same, sums, average).why_assumed == "its gradients do not scatter");
  const std::vector<double> zeros(40);
  CHECK(noise_of(zeros, zeros, average).why_assumed == "its gradients are zero");
}

TEST_CASE("a run says for every weight whether its noise was measured, and why not") {
  const TempDir dir;
  RunOptions options = small_run();
  options.lanes = {"fp32"};
  options.steps = 12;
  const auto rows_of = [&](const std::string& name, const OptimizerSpec& optimizer) {
    options.optimizer = optimizer;
    const RunFile run = record(dir.file(name), options);
    return gradient_noise(run, read_network(run).step);
  };
  for (const OptimizerSpec& optimizer :
       {OptimizerSpec{"sgd", {{"momentum", 0.9}, {"lr", 0.01}}}, OptimizerSpec{"adam", {}},
        OptimizerSpec{"adamw", {}}, OptimizerSpec{"lion", {{"lr", 1e-5}}}}) {
    CAPTURE(optimizer.name);
    const auto rows = rows_of(optimizer.name + ".h5", optimizer);
    REQUIRE(rows.size() == 6);
    CHECK(rows.front().layer == "fc1");
    for (const GradientNoise& row : rows) {
      CAPTURE(row.weight);
      CHECK(row.why_assumed.empty());
      CHECK(row.share > 0.1);
      CHECK(row.share <= 1);
    }
  }
  const std::pair<OptimizerSpec, std::string> assumed[] = {
      {{"sgd", {{"momentum", 0}}}, "sgd without momentum keeps no average of gradients"},
      {{"rmsprop", {}}, "rmsprop keeps no average of gradients"},
      {{"adam", {{"weight_decay", 0.1}}}, "weight_decay is part of the optimizer's average"}};
  for (const auto& [optimizer, why] : assumed) {
    for (const GradientNoise& row : rows_of(why.substr(0, 6) + ".h5", optimizer)) {
      CHECK(row.why_assumed == why);
      CHECK(row.share == 1);
    }
  }
  options.clip_norm = 0.5;  // clips every step
  for (const GradientNoise& row : rows_of("clip.h5", {"sgd", {{"momentum", 0.9}}})) {
    CHECK(row.is_measured());
  }
  options.accumulate = 2;
  CHECK(rows_of("two.h5", {"sgd", {{"momentum", 0.9}}}).front().why_assumed ==
        "a step adds up several gradients");
}

}  // namespace
}  // namespace lockstep
