// The arithmetic of a lane's verdict.
#include "analysis/run/outcome.h"

#include <algorithm>
#include <array>
#include <boost/math/distributions/normal.hpp>
#include <boost/math/distributions/students_t.hpp>
#include <cmath>
#include <limits>
#include <numeric>

namespace lockstep {
namespace {

double t_quantile(int64_t degrees) {
  const boost::math::students_t t(static_cast<double>(degrees));
  return boost::math::quantile(boost::math::complement(t, kErrorRate));
}
double normal_quantile() {
  return boost::math::quantile(boost::math::complement(boost::math::normal(), kErrorRate));
}

// Standard deviation from step to step.
double scatter(std::span<const double> tail) {
  double sum = 0;
  for (size_t i = 1; i < tail.size(); ++i) sum += (tail[i] - tail[i - 1]) * (tail[i] - tail[i - 1]);
  return std::sqrt(sum / 2 / static_cast<double>(tail.size() - 1));
}

// The means over stretches of the tail's length, from the end backwards through the second half of
// the run; at least one.
std::vector<double> stretches(std::span<const double> loss) {
  const size_t length = tail_of(loss).size(), half = loss.size() / 2;
  std::vector<double> means;
  for (size_t end = loss.size(); length > 0 && end >= half + length; end -= length) {
    const std::span<const double> stretch = loss.subspan(end - length, length);
    means.push_back(std::accumulate(stretch.begin(), stretch.end(), 0.0) /
                    static_cast<double>(length));
  }
  if (means.empty() && length > 0) means = {tail_mean(loss)};
  return means;
}

// Without the losses of skipped steps that are not finite: no update was made from them.
std::vector<double> without_skips(const JudgeInput& in) {
  std::vector<double> kept;
  for (size_t i = 0; i < in.lane.size(); ++i) {
    const bool skipped = std::ranges::count(in.skips, static_cast<int64_t>(i)) > 0;
    if (!skipped || std::isfinite(in.lane[i])) kept.push_back(in.lane[i]);
  }
  return kept;
}

void count_answers(const JudgeInput& in, LaneJudgement& out) {
  const HeldOut &lane = in.held_out, &reference = in.reference_held_out;
  if (lane.answers == 0 || lane.answers != reference.answers) return;
  out.answers = lane.answers;
  out.correct_drop = reference.correct - lane.correct;
  const auto variance = [](const HeldOut& h) {
    const double share = static_cast<double>(h.correct) / static_cast<double>(h.answers);
    return static_cast<double>(h.correct) * (1 - share);
  };
  out.correct_noise = normal_quantile() * std::sqrt(variance(lane) + variance(reference));
  std::vector<double> drops;
  for (const HeldOut& twin : in.twins_held_out) {
    if (twin.answers != out.answers) continue;
    drops.push_back(static_cast<double>(reference.correct - twin.correct));
    out.correct_chaos = std::max(out.correct_chaos, std::fabs(drops.back()));
  }
  out.correct_chaos_bound =
      drops.size() < kFewestTwins ? std::numeric_limits<double>::infinity() : chaos_bound(drops);
}

bool learned(std::span<const double> loss) {
  return !loss.empty() && loss.front() - tail_mean(loss) > learning_noise(loss);
}

}  // namespace

std::string_view to_string(Verdict verdict) {
  constexpr std::array<std::string_view, 8> kNames = {
      "reference", "fine", "unclear", "worse", "stalled", "broke", "too short", "not judged"};
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

double batch_noise(std::span<const double> lane, std::span<const double> reference) {
  const std::span<const double> x = tail_of(lane), y = tail_of(reference);
  const size_t n = std::min(x.size(), y.size());
  if (n < 2) return 0;
  const double of_steps = t_quantile(static_cast<int64_t>(n) - 1) *
                          std::hypot(scatter(x), scatter(y)) / std::sqrt(static_cast<double>(n));
  std::vector<double> changes = stretches(reference);
  std::adjacent_difference(changes.begin(), changes.end(), changes.begin());
  if (!changes.empty()) changes.erase(changes.begin());
  return changes.empty() ? of_steps : std::max(of_steps, chaos_bound(changes));
}

double learning_noise(std::span<const double> loss) {
  const std::span<const double> tail = tail_of(loss);
  if (tail.size() < 2) return 0;
  const auto n = static_cast<double>(tail.size());
  return t_quantile(static_cast<int64_t>(tail.size()) - 1) * scatter(tail) * std::sqrt(1 + 1 / n);
}

std::vector<double> chaos_gaps(std::span<const double> reference, std::span<const double> twin) {
  std::vector<double> gaps = stretches(twin);
  const std::vector<double> of_reference = stretches(reference);
  for (size_t i = 0; i < gaps.size(); ++i) gaps[i] -= of_reference[i];
  std::erase_if(gaps, [](double gap) { return !std::isfinite(gap); });
  return gaps;
}

double chaos_of(std::span<const double> gaps) {
  double sum = 0;
  for (const double gap : gaps) sum += gap * gap;
  return gaps.empty() ? 0 : std::sqrt(sum / static_cast<double>(gaps.size()));
}

double chaos_bound(std::span<const double> gaps) {
  if (gaps.empty()) return std::numeric_limits<double>::infinity();
  return t_quantile(static_cast<int64_t>(gaps.size())) * chaos_of(gaps);
}

LaneJudgement judge(const JudgeInput& in) {
  LaneJudgement out;
  const std::vector<double> lane = without_skips(in);
  const size_t behind = std::min(in.skips.size(), in.reference.size() / 2);
  const std::span<const double> reference = in.reference.first(in.reference.size() - behind);
  out.tail_loss = tail_mean(lane);
  out.gap = out.tail_loss - tail_mean(reference);
  out.batch_noise = batch_noise(lane, reference);
  std::vector<double> gaps;
  for (const std::span<const double> twin : in.twins) {
    const std::vector<double> more = chaos_gaps(in.reference, twin);
    gaps.insert(gaps.end(), more.begin(), more.end());
  }
  out.chaos = chaos_of(gaps);
  out.chaos_bound = chaos_bound(gaps);
  count_answers(in, out);
  if (in.died_at >= 0 || !std::isfinite(out.tail_loss)) {
    out.verdict = Verdict::kBroke;
  } else if (!in.keeps_own_weights) {
    out.verdict = Verdict::kUnjudged;
  } else if (!learned(in.reference)) {
    out.verdict = Verdict::kTooShort;
  } else if (!learned(lane) && out.gap > std::max(out.batch_noise, out.chaos)) {
    out.verdict = Verdict::kStalled;
  } else {
    const auto drop = static_cast<double>(out.correct_drop);
    const bool worse =
        out.gap > std::max(out.batch_noise, out.chaos_bound) ||
        (out.answers > 0 && drop > std::max(out.correct_noise, out.correct_chaos_bound));
    const bool beyond = out.gap > std::max(out.batch_noise, out.chaos) ||
                        drop > std::max(out.correct_noise, out.correct_chaos);
    out.verdict = worse ? Verdict::kWorse : beyond ? Verdict::kUnclear : Verdict::kFine;
  }
  return out;
}

}  // namespace lockstep
