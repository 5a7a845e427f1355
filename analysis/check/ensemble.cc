// See ensemble.h.
#include "analysis/check/ensemble.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/math/distributions/students_t.hpp>
#include <cmath>
#include <numbers>
#include <utility>

namespace lockstep {
namespace {

double mean_of(std::span<const double> x) {
  double sum = 0;
  for (const double v : x) sum += v;
  return sum / static_cast<double>(x.size());
}

double deviation_of(std::span<const double> x, double mean) {
  double sum = 0;
  for (const double v : x) sum += (v - mean) * (v - mean);
  return std::sqrt(sum / static_cast<double>(x.size() - 1));
}

double t_at(double degrees, double tail) {
  return boost::math::quantile(boost::math::complement(boost::math::students_t(degrees), tail));
}

// How many times farther the farthest value lies from the others than the farthest of as many
// normal ones; at least 1.
double tail_weight(std::span<const double> x) {
  const auto n = static_cast<double>(x.size());
  if (x.size() <= kFewestRuns) return 1;
  const double expected = t_at(n - 2, 1 / (2 * n));
  double most = 1;
  std::vector<double> others;
  for (size_t i = 0; i < x.size(); ++i) {
    others.assign(x.begin(), x.end());
    others.erase(others.begin() + static_cast<std::ptrdiff_t>(i));
    const double mean = mean_of(others), deviation = deviation_of(others, mean);
    const double apart = std::fabs(x[i] - mean);
    if (apart == 0) continue;
    // All the others are equal: only its own distance shows how far it may be.
    const double z =
        deviation > 0 ? apart / (deviation * std::sqrt(1 + 1 / (n - 1))) : expected * std::sqrt(n);
    most = std::max(most, z / expected);
  }
  // A single far value already enlarges the deviation; more than the distance itself has no use.
  return std::min(most, std::sqrt(n));
}

}  // namespace

Band band_of(std::span<const Measured> values, MetricUnit unit) {
  std::vector<double> x;
  size_t there = 0;
  double fewest_trials = std::numeric_limits<double>::infinity();
  for (const Measured& value : values) {
    if (!value.is_there()) continue;
    ++there;
    if (value.is_exact()) continue;
    x.push_back(value.value);
    fewest_trials = std::min(fewest_trials, value.trials);
  }
  if (there == 0) return {};
  const bool always = there == values.size();
  if (x.empty()) return {-std::numeric_limits<double>::infinity(), 0, always};
  Band band{.centre = mean_of(x), .spread = 0, .always = always};
  if (x.size() > 1) band.spread = deviation_of(x, band.centre) * tail_weight(x);
  if (fewest_trials > 0 && std::isfinite(fewest_trials)) {
    const double share = std::max(band.centre, 0.0) + 1 / fewest_trials;
    const double sampling = unit == MetricUnit::kShare
                                ? std::sqrt(share / fewest_trials)
                                : std::sqrt(2 / fewest_trials) / 2 * std::numbers::log2e;
    band.spread = std::max(band.spread, sampling);
  }
  return band;
}

const Band* LaneBands::find(MetricId id, size_t subject) const {
  const std::vector<Band>& all = bands[static_cast<size_t>(id)];
  return subject < all.size() && all[subject].is_there() ? &all[subject] : nullptr;
}

Band* LaneBands::find(MetricId id, size_t subject) {
  return const_cast<Band*>(std::as_const(*this).find(id, subject));
}

std::string runs_text(Draw draw, int64_t runs) {
  return fmt::format(
      "{} {}", runs,
      draw == Draw::kSame ? "runs from weights moved by one ulp" : "runs from other seeds");
}

std::string few_runs_text(Draw draw, int64_t runs) {
  if (runs == 0 || runs - 1 >= kFewMembers) return "";
  return fmt::format("{} make wide limits: a small regression may pass", runs_text(draw, runs));
}

std::string_view to_string(Draw draw) {
  return draw == Draw::kSame ? "ulps" : "seeds";
}

namespace {

// The mean quantiles, and every run's distance from the mean of the others.
void add_exponents(std::span<const RunSummary> runs, size_t lane, LaneBands& out) {
  const size_t sites = runs[0].lanes[lane].exponents.size();
  out.exponents.resize(sites);
  out.has_exponents.assign(sites, false);
  std::vector<Band>& bands = out.bands[static_cast<size_t>(MetricId::kExponents)];
  bands.assign(sites, {});
  for (size_t s = 0; s < sites; ++s) {
    ExponentQuantiles sum{};
    double count = 0;
    for (const RunSummary& run : runs) {
      if (!run.lanes[lane].has_exponents[s]) continue;
      for (size_t q = 0; q < kQuantiles; ++q) sum[q] += run.lanes[lane].exponents[s][q];
      ++count;
    }
    if (count == 0) continue;
    out.has_exponents[s] = true;
    for (size_t q = 0; q < kQuantiles; ++q) out.exponents[s][q] = sum[q] / count;
    std::vector<Measured> apart;
    for (const RunSummary& run : runs) {
      if (!run.lanes[lane].has_exponents[s] || count < 2) {
        apart.emplace_back();
        continue;
      }
      ExponentQuantiles others{};
      for (size_t q = 0; q < kQuantiles; ++q) {
        others[q] = (sum[q] - run.lanes[lane].exponents[s][q]) / (count - 1);
      }
      apart.push_back({distance(run.lanes[lane].exponents[s], others)});
    }
    bands[s] = band_of(apart, MetricUnit::kOctaves);
  }
}

}  // namespace

Ensemble make_ensemble(std::span<const RunSummary> runs) {
  Ensemble ensemble{.runs = static_cast<int64_t>(runs.size())};
  if (runs.empty()) return ensemble;
  for (size_t lane = 0; lane < runs[0].lanes.size(); ++lane) {
    LaneBands& out = ensemble.lanes.emplace_back();
    out.bands.resize(metrics().size());
    for (const Metric& metric : metrics()) {
      const auto id = static_cast<size_t>(metric.id);
      size_t subjects = 0;
      for (const RunSummary& run : runs) {
        subjects = std::max(subjects, run.lanes[lane].values[id].size());
      }
      std::vector<Measured> values(runs.size());
      for (size_t subject = 0; subject < subjects; ++subject) {
        for (size_t r = 0; r < runs.size(); ++r) {
          const Measured* found = runs[r].lanes[lane].find(metric.id, subject);
          values[r] = found == nullptr ? Measured{} : *found;
        }
        out.bands[id].push_back(band_of(values, metric.unit));
      }
    }
    if (runs[0].lanes[lane].is_reference) add_exponents(runs, lane, out);
  }
  return ensemble;
}

void pool_drift(Ensemble& ensemble) {
  // 300 ensembles of 13 out of 213 runs of a small network: with half of the median none fails more
  // than 2 of 200 runs, with a fourth 4 in 100 do; each by itself 15 in 100, and up to 39 of 200.
  constexpr double kShareOfMedian = 0.5;
  for (LaneBands& lane : ensemble.lanes) {
    std::vector<Band>& bands = lane.bands[static_cast<size_t>(MetricId::kError)];
    std::vector<double> spreads;
    for (const Band& band : bands) {
      if (band.is_there() && !band.is_exact()) spreads.push_back(band.spread);
    }
    if (spreads.empty()) continue;
    const auto middle = spreads.begin() + static_cast<std::ptrdiff_t>(spreads.size() / 2);
    std::ranges::nth_element(spreads, middle);
    const double least = kShareOfMedian * *middle;
    for (Band& band : bands) {
      if (band.is_there() && !band.is_exact()) band.spread = std::max(band.spread, least);
    }
  }
}

double limit_factor(int64_t runs, double alpha, size_t judged) {
  const auto k = static_cast<double>(runs);
  return t_at(k - 1, alpha / (2 * static_cast<double>(std::max<size_t>(judged, 1)))) *
         std::sqrt(1 + 1 / k);
}

}  // namespace lockstep
