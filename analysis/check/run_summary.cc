// See run_summary.h.
#include "analysis/check/run_summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <set>
#include <utility>

#include "analysis/findings/finding_kinds.h"
#include "analysis/findings/findings.h"
#include "analysis/run/lane_outcomes.h"
#include "analysis/run/loss_noise.h"
#include "src/capture/capture.h"
#include "src/core/text_hash.h"
#include "src/policy/twin_lane.h"
#include "src/record/run/play.h"

namespace lockstep {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr int kExponentBias = 127;

// Half of log2(a / b): of sums of squares, the ratio of the root mean squares in octaves.
double octaves(double a, double b) {
  return a > 0 && b > 0 && std::isfinite(a) && std::isfinite(b) ? std::log2(a / b) / 2 : kNan;
}

// The same for an error, which may be 0.
Measured error_octaves(double error_sq, double size_sq, double values) {
  if (!(size_sq > 0)) return {};
  if (error_sq == 0) return {-std::numeric_limits<double>::infinity(), values};
  return {octaves(error_sq, size_sq), values};
}

Measured share(double part, double whole) {
  return whole > 0 ? Measured{part / whole, whole} : Measured{};
}

// Sums over the steps of one site.
struct SiteSums {
  double count = 0, nonzero = 0, nonfinite = 0, to_zero = 0, saturated = 0;
  double size_sq = 0, rounding_sq = 0, error_sq = 0, reference_sq = 0;
  double update_sq = 0, stagnant_sq = 0, updates = 0;
  double flipped = 0, decisions = 0;
  double sized = 0;     // of `count`, those in `size_sq`
  double elements = 0;  // of a step
  double rows = 0;      // of a step: elements / last extent

  void add(const SiteRecord& site, const Shape& shape) {
    const TensorStats& stats = site.stats;
    const auto values = static_cast<double>(stats.count);
    count += values;
    elements = std::max(elements, values);
    const double width = shape.empty() ? 1 : static_cast<double>(shape.back());
    rows = std::max(rows, std::max(1.0, elements / std::max(width, 1.0)));
    nonzero += static_cast<double>(stats.count - stats.source_zero);
    nonfinite += static_cast<double>(stats.nan + stats.to_infinity);
    if (stats.abs_max > TensorStats::kMaxDouble && stats.to_infinity == 0) {
      nonfinite += 1;  // an infinity came in
    }
    to_zero += static_cast<double>(stats.to_zero);
    saturated += static_cast<double>(stats.saturated);
    decisions += static_cast<double>(site.decisions.count);
    flipped += static_cast<double>(site.decisions.flipped);
    if (site.update.measured) {
      updates += static_cast<double>(site.update.stats.count);
      update_sq += site.update.stats.update_sq;
      stagnant_sq += site.update.stats.stagnant_sq;
    }
    if (!site.measured || std::isnan(site.scale)) return;  // only counted in this step
    const auto add_to = [](double& sum, double x) {
      if (std::isfinite(x)) sum += x;
    };
    const double scale_sq = site.scale * site.scale;
    sized += values;
    add_to(size_sq, stats.sum_sq / scale_sq);
    add_to(rounding_sq, stats.round_err_sq / scale_sq);
    add_to(error_sq, site.error.err_sq);
    add_to(reference_sq, site.error.ref_sq);
  }
  double magnitude() const { return octaves(size_sq, sized); }
  Measured rounding() const { return error_octaves(rounding_sq, size_sq, elements); }
};

// What follows from the sums over some steps at one site.
Measured of_site(MetricId id, const SiteSums& sum, bool is_meant_infinite) {
  switch (id) {
    case MetricId::kNonfinite:
      return is_meant_infinite ? Measured{} : share(sum.nonfinite, sum.count);
    case MetricId::kZeros:
      // A dead unit zeroes whole rows, in all steps: rows are the trials, not elements.
      return sum.count > 0 ? Measured{1 - sum.nonzero / sum.count, sum.rows} : Measured{};
    case MetricId::kToZero:
      return share(sum.to_zero, sum.nonzero);
    case MetricId::kSaturated:
      return share(sum.saturated, sum.nonzero);
    case MetricId::kFirstRounding:
    case MetricId::kRounding:
      return sum.rounding();
    case MetricId::kError:
      return error_octaves(sum.error_sq, sum.reference_sq, sum.elements);
    case MetricId::kFirstMagnitude:
    case MetricId::kMagnitude:
      return {sum.magnitude()};
    case MetricId::kStagnant:
      return sum.update_sq > 0 ? Measured{sum.stagnant_sq / sum.update_sq, sum.updates}
                               : Measured{};
    case MetricId::kFlipped:
      return share(sum.flipped, sum.decisions);
    default:
      return {};
  }
}

// Adds a step at every site.
void add_step(const SiteTable& sites, const LaneStep& lane, std::vector<SiteSums>& sums) {
  for (size_t s = 0; s < lane.sites.size(); ++s) {
    if (lane.sites[s].stats.count > 0) sums[s].add(lane.sites[s], sites.sites[s].shape);
  }
}

class Hash {
 public:
  void add(const void* data, size_t bytes) {
    hash_ = fnv1a({static_cast<const char*>(data), bytes}, hash_);
  }
  template <typename T>
  void add(const std::vector<T>& values) {
    add(values.data(), values.size() * sizeof(T));
  }
  std::string text() const { return fmt::format("{:016x}", hash_); }

 private:
  uint64_t hash_ = 0;
};

// The mean logarithm of a number over the steps, and its first.
struct MeanLog {
  double sum = 0, first = kNan;
  size_t count = 0;
  void add(int64_t step, double value) {
    const double x = std::log2(value);
    if (!std::isfinite(x)) return;
    if (step == 0) first = x;
    sum += x;
    ++count;
  }
  double mean() const { return count == 0 ? kNan : sum / static_cast<double>(count); }
};

// Sums up one lane as it is played.
class LaneTally : public Observer {
 public:
  LaneTally(const RunFile& run, int lane)
      : run_(run),
        lane_(lane),
        info_(run.lanes()[static_cast<size_t>(lane)]),
        findings_(view_of(run), lane),
        first_(run.sites().sites.size()),
        all_(first_.size()),
        health_(first_.size()) {}

  void on_step(const StepRecord& record) override {
    findings_.on_step(record);
    add_parameters(record.step, record.lanes[static_cast<size_t>(lane_)]);
    add_lane(record, record.lanes[static_cast<size_t>(lane_)]);
  }

  // The summary after the last step.
  LaneSummary summary() {
    out_.name = info_.name;
    out_.is_reference = info_.is_reference;
    out_.values.resize(metrics().size());
    if (info_.name != kCapturedLane) summarize_sites();
    summarize_lane();
    std::set<std::string> kinds;
    for (const Finding& finding : findings_.findings()) {
      kinds.insert(std::string(row_of(finding.kind).name));
    }
    out_.findings.assign(kinds.begin(), kinds.end());
    return std::move(out_);
  }

 private:
  Measured& value(MetricId id, size_t subject, size_t subjects) {
    std::vector<Measured>& values = out_.values[static_cast<size_t>(id)];
    values.resize(subjects);
    return values[subject];
  }
  bool applies(const Metric& metric) const {
    return !metric.reference_only || info_.is_reference || info_.name == kCapturedLane;
  }

  void add_lane(const StepRecord& record, const LaneStep& lane) {
    losses_.push_back(lane.alive ? lane.loss : kNan);
    reference_losses_.push_back(record.lanes.front().alive ? record.lanes.front().loss : kNan);
    if (!lane.alive) return;
    ++steps_;
    const bool is_captured = info_.name == kCapturedLane;
    out_.step_bits.push_back(is_captured ? captured_bits(lane) : bits_of(record, lane));
    // A step is skipped for all losses at once, so every scaler's column shows it.
    const ScalerRecord scaler = lane.scalers.at(0);
    octaves_of_scale_ += std::log2(scaler.scale);
    has_scale_ = has_scale_ && std::isfinite(scaler.scale);
    const bool skipped = has_scale_ && scaler.skipped;
    skipped_ += skipped;
    if (!skipped && std::isfinite(lane.loss)) finite_losses_.push_back(lane.loss);
    if (run_.options().measuring.samples_sums(record.step)) {
      for (size_t s = 0; s < health_.size(); ++s) health_[s].merge(lane.sites[s].health);
    }
    if (is_captured || skipped) return;
    add_step(run_.sites(), lane, all_);
    if (record.step == 0) first_ = all_;
  }

  // Nothing was measured at its sites.
  static std::string captured_bits(const LaneStep& lane) {
    Hash hash;
    hash.add(lane.gradient_norms);
    hash.add(&lane.loss, sizeof lane.loss);
    return hash.text();
  }

  std::string bits_of(const StepRecord& record, const LaneStep& lane) const {
    Hash hash;
    std::vector<uint64_t> column(lane.sites.size());
    const auto add = [&](auto value_at) {
      std::ranges::transform(lane.sites, column.begin(), value_at);
      hash.add(column);
    };
    add([](const SiteRecord& site) { return site.stats.bits_hash; });
    hash.add(&lane.loss, sizeof lane.loss);
    if (run_.options().measuring.counts_between && !record.is_measured) {  // has no hashes
      for (const Statistic& statistic : statistics()) {
        if (statistic.kind() != StatisticKind::kCount) continue;
        add([&](const SiteRecord& site) { return statistic.count(site.stats, site.error); });
      }
    }
    return hash.text();
  }

  void add_parameters(int64_t step, const LaneStep& lane) {
    if (!lane.alive) return;
    gradients_.resize(std::max(gradients_.size(), lane.gradient_norms.size()));
    rates_.resize(std::max(rates_.size(), lane.lr.size()));
    for (size_t p = 0; p < lane.gradient_norms.size(); ++p) {
      gradients_[p].add(step, lane.gradient_norms[p]);
    }
    for (size_t g = 0; g < lane.lr.size(); ++g) rates_[g].add(step, lane.lr[g]);
  }

  void summarize_sites() {
    const std::vector<Site>& sites = run_.sites().sites;
    for (const Metric& metric : metrics()) {
      if (metric.of != MetricOf::kSite || !applies(metric)) continue;
      for (size_t s = 0; s < sites.size(); ++s) {
        value(metric.id, s, sites.size()) =
            of_site(metric.id, metric.first_step ? first_[s] : all_[s], sites[s].stat_exempt);
      }
    }
    summarize_sums();
    if (info_.is_reference) summarize_exponents();
  }

  void summarize_sums() {
    for (size_t s = 0; s < health_.size(); ++s) {
      const AccumulatorHealth& sum = health_[s];
      if (sum.samples == 0) continue;
      value(MetricId::kSwamped, s, health_.size()) =
          share(static_cast<double>(sum.swamped), static_cast<double>(sum.addends));
      value(MetricId::kSumError, s, health_.size()) =
          error_octaves(sum.err_sq, sum.exact_sq, static_cast<double>(sum.compared));
    }
  }

  void summarize_exponents() {
    const std::vector<uint64_t> histogram = run_.total_histogram(lane_);
    const size_t sites = histogram.size() / kHistogramBins;
    out_.exponents.resize(sites);
    out_.has_exponents.resize(sites);
    for (size_t s = 0; s < sites; ++s) {
      const std::span<const uint64_t> bins =
          std::span(histogram).subspan(s * kHistogramBins, kHistogramBins);
      // Bin 0 holds zeros and subnormals, the last one infinities and NaN.
      double total = 0;
      for (size_t b = 1; b + 1 < bins.size(); ++b) total += static_cast<double>(bins[b]);
      if (total == 0) continue;
      out_.has_exponents[s] = true;
      double below = 0;
      size_t b = 1;
      for (size_t q = 0; q < kQuantiles; ++q) {
        const double wanted = total * (2 * static_cast<double>(q) + 1) / (2 * kQuantiles);
        while (below + static_cast<double>(bins[b]) < wanted)
          below += static_cast<double>(bins[b++]);
        const double inside = (wanted - below) / static_cast<double>(bins[b]);
        out_.exponents[s][q] = static_cast<double>(b) - kExponentBias + inside;
      }
    }
  }

  void summarize_lane() {
    const auto lane_value = [&](MetricId id, Measured measured) { value(id, 0, 1) = measured; };
    lane_value(MetricId::kDied, {info_.died_at >= 0 ? 1.0 : 0.0});
    if (!losses_.empty() && std::isfinite(losses_[0])) {
      lane_value(MetricId::kFirstLoss, {losses_[0]});
    }
    if (!finite_losses_.empty()) {
      lane_value(MetricId::kEndLoss, {end_mean(finite_losses_)});
      if (!info_.is_reference && info_.died_at < 0) {
        lane_value(MetricId::kLossGap, {end_mean(finite_losses_) - end_mean(reference_losses_)});
      }
    }
    if (steps_ > 0) {
      const auto steps = static_cast<double>(steps_);
      lane_value(MetricId::kSkipped, {static_cast<double>(skipped_) / steps, steps});
      if (std::isfinite(octaves_of_scale_)) {
        lane_value(MetricId::kLossScale, {octaves_of_scale_ / steps});
      }
    }
    summarize_parameters();
    const std::vector<Evaluation> evaluations = run_.evaluations(lane_);
    if (!evaluations.empty()) {
      const Evaluation& last = evaluations.back();
      if (std::isfinite(last.loss)) lane_value(MetricId::kHeldOutLoss, {last.loss});
      if (std::isfinite(last.accuracy)) {
        lane_value(MetricId::kWrongAnswers,
                   {1 - last.accuracy, static_cast<double>(last.example_count)});
      }
    }
  }

  void summarize_parameters() {
    if (!applies(metric_row(MetricId::kGradient))) return;
    for (size_t p = 0; p < gradients_.size(); ++p) {
      value(MetricId::kFirstGradient, p, gradients_.size()) = {gradients_[p].first};
      value(MetricId::kGradient, p, gradients_.size()) = {gradients_[p].mean()};
    }
    for (size_t g = 0; g < rates_.size(); ++g) {
      value(MetricId::kLearningRate, g, rates_.size()) = {rates_[g].mean()};
    }
  }

  const RunFile& run_;
  int lane_;
  const LaneInfo& info_;
  FindingTally findings_;
  std::vector<SiteSums> first_, all_;  // of the first step, and of all that were not skipped
  std::vector<AccumulatorHealth> health_;
  std::vector<MeanLog> gradients_, rates_;  // by parameter, and by group
  std::vector<double> losses_, reference_losses_, finite_losses_;
  double octaves_of_scale_ = 0;
  bool has_scale_ = true;  // it was finite in all steps so far
  int64_t steps_ = 0, skipped_ = 0;
  LaneSummary out_;
};

}  // namespace

double distance(const ExponentQuantiles& a, const ExponentQuantiles& b) {
  double sum = 0;
  for (size_t q = 0; q < kQuantiles; ++q) sum += std::fabs(a[q] - b[q]);
  return sum / kQuantiles;
}

const Measured* LaneSummary::find(MetricId id, size_t subject) const {
  const std::vector<Measured>& all = values[static_cast<size_t>(id)];
  return subject < all.size() && all[subject].is_there() ? &all[subject] : nullptr;
}

RunSummary summarize(const RunFile& run) {
  std::vector<std::unique_ptr<LaneTally>> tallies;
  std::vector<Observer*> observers;
  for (int lane = 0; lane < static_cast<int>(run.lanes().size()); ++lane) {
    if (twin_number(run.lanes()[static_cast<size_t>(lane)].name) > 0) continue;
    observers.push_back(tallies.emplace_back(std::make_unique<LaneTally>(run, lane)).get());
  }
  play(run, every_lane(run), observers);
  RunSummary summary{.steps = run.steps()};
  for (const auto& tally : tallies) summary.lanes.push_back(tally->summary());
  return summary;
}

std::vector<double> metrics_at(const RunFile& run, int lane, int64_t step,
                               const std::vector<SiteMetric>& asked) {
  std::vector<double> found(asked.size(), kNan);
  const LaneStep read = run.step(lane, step, /*histograms=*/false);
  const std::vector<int64_t> skipped = skipped_steps(run.scalers(lane));
  if (!read.alive || std::ranges::binary_search(skipped, step)) return found;
  const std::vector<Site>& sites = run.sites().sites;
  std::vector<SiteSums> sums(sites.size());
  add_step(run.sites(), read, sums);
  for (size_t i = 0; i < asked.size(); ++i) {
    const auto [metric, site] = asked[i];
    found[i] = of_site(metric, sums[site], sites[site].stat_exempt).value;
  }
  return found;
}

}  // namespace lockstep
