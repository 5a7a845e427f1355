// The arithmetic of a lane's verdict.
#include "analysis/run/outcome.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <limits>

namespace lockstep {

std::string_view to_string(Verdict verdict) {
  constexpr std::array<std::string_view, 6> kNames = {"reference", "fine",  "worse",
                                                      "unclear",   "broke", "not judged"};
  return kNames[static_cast<size_t>(verdict)];
}

std::span<const double> tail_of(std::span<const double> loss) {
  const size_t wanted = std::max<size_t>(kTailSteps, loss.size() / kTailDivisor);
  return loss.last(std::min(wanted, loss.size()));
}

double tail_mean(std::span<const double> loss) {
  if (loss.empty()) return std::numeric_limits<double>::quiet_NaN();
  const std::span<const double> tail = tail_of(loss);
  double sum = 0;
  for (const double x : tail) sum += x;
  return sum / static_cast<double>(tail.size());
}

double gap_standard_error(std::span<const double> a, std::span<const double> b) {
  const std::span<const double> x = tail_of(a), y = tail_of(b);
  const size_t n = std::min(x.size(), y.size());
  if (n < 2) return 0;
  double sum = 0, sum_sq = 0;
  for (size_t i = 0; i < n; ++i) sum += x[i] - y[i];
  const double mean = sum / static_cast<double>(n);
  for (size_t i = 0; i < n; ++i) sum_sq += (x[i] - y[i] - mean) * (x[i] - y[i] - mean);
  const auto count = static_cast<double>(n);
  return std::sqrt(sum_sq / (count - 1) / count);
}

double loss_margin(std::span<const double> reference, std::span<const double> twin) {
  if (reference.empty()) return 0;
  const double end = tail_mean(reference);
  const double margin = kLossMarginShare * (reference.front() - end);
  if (!(margin > 0) || twin.empty()) return margin;
  const double chaos = std::fabs(tail_mean(twin) - end);
  return std::isfinite(chaos) ? std::max(margin, chaos) : margin;
}

double learning_noise(std::span<const double> reference) {
  const std::span<const double> tail = tail_of(reference);
  if (tail.size() < 2) return 0;
  double sum = 0;
  for (size_t i = 1; i < tail.size(); ++i) sum += (tail[i] - tail[i - 1]) * (tail[i] - tail[i - 1]);
  const double variance = sum / 2 / static_cast<double>(tail.size() - 1);
  return kGapSigmas * std::sqrt(variance * (1 + 1 / static_cast<double>(tail.size())));
}

namespace {

bool learned(std::span<const double> reference) {
  return !reference.empty() && reference.front() - tail_mean(reference) > learning_noise(reference);
}

void count_answers(const JudgeInput& in, LaneJudgement& out) {
  const HeldOut &lane = in.held_out, &reference = in.reference_held_out, &twin = in.twin_held_out;
  if (lane.answers == 0 || lane.answers != reference.answers) return;
  out.answers = lane.answers;
  out.correct_drop = reference.correct - lane.correct;
  out.correct_margin = out.answers / kAnswersPerPoint;
  if (twin.answers == out.answers) {
    out.correct_margin = std::max(out.correct_margin, std::abs(reference.correct - twin.correct));
  }
  const auto variance = [](const HeldOut& h) {
    const double share = static_cast<double>(h.correct) / static_cast<double>(h.answers);
    return static_cast<double>(h.correct) * (1 - share);
  };
  out.correct_noise = kGapSigmas * std::sqrt(variance(lane) + variance(reference));
}

}  // namespace

LaneJudgement judge(const JudgeInput& in) {
  LaneJudgement out;
  out.tail_loss = tail_mean(in.lane);
  out.gap = out.tail_loss - tail_mean(in.reference);
  out.margin = loss_margin(in.reference, in.twin);
  count_answers(in, out);
  if (in.died_at >= 0 || !std::isfinite(out.tail_loss)) {
    out.verdict = Verdict::kBroke;
  } else if (!in.keeps_own_weights || !learned(in.reference)) {
    out.verdict = Verdict::kUnjudged;
  } else {
    out.noise = kGapSigmas * gap_standard_error(in.lane, in.reference);
    const auto drop = static_cast<double>(out.correct_drop);
    const auto allowed = static_cast<double>(out.correct_margin);
    const bool worse = out.gap - out.noise > out.margin || drop - out.correct_noise > allowed;
    const bool beyond = out.gap > out.margin || drop > allowed;
    out.verdict = worse ? Verdict::kWorse : beyond ? Verdict::kUnclear : Verdict::kFine;
  }
  return out;
}

}  // namespace lockstep
