// The arithmetic of loss_noise.h.
#include "analysis/run/loss_noise.h"

#include <algorithm>
#include <boost/math/distributions/normal.hpp>
#include <boost/math/distributions/students_t.hpp>
#include <cmath>
#include <limits>
#include <numeric>

namespace lockstep {
namespace {

size_t end_steps(std::span<const double> loss) {
  return std::min(loss.size(), std::max<size_t>(kTailSteps, loss.size() / kTailDivisor));
}

double mean(std::span<const double> values) {
  if (values.empty()) return std::numeric_limits<double>::quiet_NaN();
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

// The means over stretches of the tail's length, from the end backwards through the second half of
// the run; at least one.
std::vector<double> stretches(std::span<const double> loss) {
  const size_t length = tail_of(loss).size(), half = loss.size() / 2;
  std::vector<double> means;
  for (size_t end = loss.size(); length > 0 && end >= half + length; end -= length) {
    means.push_back(mean(loss.subspan(end - length, length)));
  }
  if (means.empty() && length > 0) means = {tail_mean(loss)};
  return means;
}

}  // namespace

double step_scatter(std::span<const double> tail) {
  double sum = 0;
  for (size_t i = 1; i < tail.size(); ++i) sum += (tail[i] - tail[i - 1]) * (tail[i] - tail[i - 1]);
  return std::sqrt(sum / 2 / static_cast<double>(tail.size() - 1));
}

double t_quantile(int64_t degrees) {
  const boost::math::students_t t(static_cast<double>(degrees));
  return boost::math::quantile(boost::math::complement(t, kErrorRate));
}
double normal_quantile() {
  return boost::math::quantile(boost::math::complement(boost::math::normal(), kErrorRate));
}

std::span<const double> tail_of(std::span<const double> loss) {
  return loss.last(std::min((loss.size() + 1) / 2, end_steps(loss)));
}
double tail_mean(std::span<const double> loss) {
  return mean(tail_of(loss));
}
double end_mean(std::span<const double> loss) {
  return mean(loss.last(end_steps(loss)));
}

double batch_noise(std::span<const double> lane, std::span<const double> reference) {
  const std::span<const double> x = tail_of(lane), y = tail_of(reference);
  const size_t n = std::min(x.size(), y.size());
  if (n < 2) return 0;
  const double of_steps = t_quantile(static_cast<int64_t>(n) - 1) *
                          std::hypot(step_scatter(x), step_scatter(y)) /
                          std::sqrt(static_cast<double>(n));
  std::vector<double> changes = stretches(reference);
  std::adjacent_difference(changes.begin(), changes.end(), changes.begin());
  if (!changes.empty()) changes.erase(changes.begin());
  return changes.size() < kFewestChanges ? of_steps : std::max(of_steps, chaos_bound(changes));
}

double learning_noise(std::span<const double> loss) {
  const std::span<const double> tail = tail_of(loss);
  if (tail.size() < kFewestTail) return std::numeric_limits<double>::infinity();
  const auto n = static_cast<double>(tail.size());
  return t_quantile(static_cast<int64_t>(tail.size()) - 1) * step_scatter(tail) *
         std::sqrt(1 + 1 / n);
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

}  // namespace lockstep
