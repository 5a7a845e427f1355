// See run_summary.h.
#include "analysis/check/run_summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "analysis/findings/finding_kinds.h"
#include "analysis/findings/findings.h"
#include "analysis/run/lane_outcomes.h"
#include "analysis/run/loss_noise.h"
#include "analysis/run/run_data.h"
#include "src/capture/capture.h"
#include "src/core/text_hash.h"
#include "src/policy/twin_lane.h"

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

  void add(const StepCounts& counts, size_t s, double sum_sq, double round_err_sq, double err_sq,
           double ref_sq, double scale) {
    count += static_cast<double>(counts.count[s]);
    elements = std::max(elements, static_cast<double>(counts.count[s]));
    nonzero += static_cast<double>(counts.count[s] - counts.source_zero[s]);
    nonfinite += static_cast<double>(counts.nan[s] + counts.to_infinity[s]);
    if (counts.abs_max[s] > std::numeric_limits<double>::max() && counts.to_infinity[s] == 0) {
      nonfinite += 1;  // an infinity came in
    }
    to_zero += static_cast<double>(counts.to_zero[s]);
    saturated += static_cast<double>(counts.saturated[s]);
    const auto add_to = [](double& sum, double x) {
      if (std::isfinite(x)) sum += x;
    };
    if (std::isnan(scale)) return;  // only counted in this step
    sized += static_cast<double>(counts.count[s]);
    add_to(size_sq, sum_sq / (scale * scale));
    add_to(rounding_sq, round_err_sq / (scale * scale));
    add_to(error_sq, err_sq);
    add_to(reference_sq, ref_sq);
  }
  double magnitude() const { return octaves(size_sq, sized); }
  Measured rounding() const { return error_octaves(rounding_sq, size_sq, elements); }
};

class LaneReader {
 public:
  LaneReader(const RunFile& run, int lane)
      : run_(run), lane_(lane), info_(run.lanes()[static_cast<size_t>(lane)]) {
    const std::vector<int64_t> skipped = skipped_steps(run.scalers(lane));
    skipped_.insert(skipped.begin(), skipped.end());
    steps_ = info_.died_at < 0 ? run.steps() : std::min(info_.died_at, run.steps());
  }

  LaneSummary read() {
    out_.name = info_.name;
    out_.is_reference = info_.is_reference;
    out_.values.resize(metrics().size());
    if (info_.name == kCapturedLane) {
      read_captured_bits();
    } else {
      read_sites();
    }
    read_lane();
    std::set<std::string> kinds;
    if (is_candidate(info_)) {
      for (const Finding& finding : find_findings(run_, lane_)) {
        kinds.insert(std::string(row_of(finding.kind).name));
      }
    }
    out_.findings.assign(kinds.begin(), kinds.end());
    return std::move(out_);
  }

  // Adds the statistics of one step to `sums`.
  void add_step(int64_t step, std::vector<SiteSums>& sums) const {
    const StepCounts counts = read_counts(run_, lane_, step);
    const std::vector<double> size = run_.moment(lane_, "sum_sq", step);
    const std::vector<double> rounding = run_.moment(lane_, "round_err_sq", step);
    const std::vector<double> error = run_.moment(lane_, "err_sq", step);
    const std::vector<double> reference = run_.moment(lane_, "ref_sq", step);
    const std::vector<double> scale = run_.scale(lane_, step);
    const std::vector<UpdateRecord> updates = run_.updates(lane_, step);
    const std::vector<DecisionStats> decisions = run_.decisions_at(lane_, step);
    for (size_t s = 0; s < counts.size(); ++s) {
      if (counts.count[s] == 0) continue;
      SiteSums& sum = sums[s];
      sum.add(counts, s, size[s], rounding[s], error[s], reference[s], scale[s]);
      const Shape& shape = run_.sites().sites[s].shape;
      const double width = shape.empty() ? 1 : static_cast<double>(shape.back());
      sum.rows = std::max(sum.rows, std::max(1.0, sum.elements / std::max(width, 1.0)));
      if (updates[s].measured) {
        sum.updates += static_cast<double>(updates[s].stats.count);
        sum.update_sq += updates[s].stats.update_sq;
        sum.stagnant_sq += updates[s].stats.stagnant_sq;
      }
      if (s < decisions.size()) {
        sum.decisions += static_cast<double>(decisions[s].count);
        sum.flipped += static_cast<double>(decisions[s].flipped);
      }
    }
  }

  Measured of_site(MetricId id, const SiteSums& sum, bool is_meant_infinite) const {
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
  bool is_skipped(int64_t step) const { return skipped_.contains(step); }
  int64_t steps() const { return steps_; }

 private:
  Measured& value(MetricId id, size_t subject, size_t subjects) {
    std::vector<Measured>& values = out_.values[static_cast<size_t>(id)];
    values.resize(subjects);
    return values[subject];
  }
  bool applies(const Metric& metric) const {
    return !metric.reference_only || info_.is_reference || info_.name == kCapturedLane;
  }

  void read_sites() {
    const std::vector<Site>& sites = run_.sites().sites;
    std::vector<SiteSums> first(sites.size()), all(sites.size());
    const std::vector<double> losses = run_.loss(lane_);
    for (int64_t step = 0; step < steps_; ++step) {
      out_.step_bits.push_back(bits_of(step, losses[static_cast<size_t>(step)]));
      if (is_skipped(step)) continue;
      add_step(step, all);
      if (step == 0) first = all;
    }
    for (const Metric& metric : metrics()) {
      if (metric.of != MetricOf::kSite || !applies(metric)) continue;
      for (size_t s = 0; s < sites.size(); ++s) {
        value(metric.id, s, sites.size()) =
            of_site(metric.id, metric.first_step ? first[s] : all[s], sites[s].stat_exempt);
      }
    }
    read_sums();
    if (info_.is_reference) read_exponents();
  }

  // Nothing was measured at its sites.
  void read_captured_bits() {
    const std::vector<double> losses = run_.loss(lane_), gradients = run_.gradient_norms(lane_);
    const size_t width = losses.empty() ? 0 : gradients.size() / losses.size();
    for (size_t step = 0; step < static_cast<size_t>(steps_); ++step) {
      const auto row = std::span(gradients).subspan(step * width, width);
      uint64_t hash = fnv1a({reinterpret_cast<const char*>(row.data()), row.size_bytes()});
      hash = fnv1a({reinterpret_cast<const char*>(&losses[step]), sizeof losses[step]}, hash);
      out_.step_bits.push_back(fmt::format("{:016x}", hash));
    }
  }

  std::string bits_of(int64_t step, double loss) const {
    uint64_t hash = 0;
    const auto add = [&](const void* data, size_t bytes) {
      hash = fnv1a({static_cast<const char*>(data), bytes}, hash);
    };
    const std::vector<uint64_t> bits = run_.bits_hash(lane_, step);
    add(bits.data(), bits.size() * sizeof bits[0]);
    add(&loss, sizeof loss);
    if (run_.has_counts(step) && !run_.is_measured(step)) {  // has no hashes
      for (const Statistic& statistic : statistics()) {
        if (statistic.kind != StatisticKind::kCount) continue;
        const std::vector<uint64_t> counts = run_.count(lane_, statistic.name, step);
        add(counts.data(), counts.size() * sizeof counts[0]);
      }
    }
    return fmt::format("{:016x}", hash);
  }

  void read_sums() {
    const std::vector<AccumulatorHealth> sums = run_.sums(lane_);
    for (size_t s = 0; s < sums.size(); ++s) {
      const AccumulatorHealth& sum = sums[s];
      if (sum.samples == 0) continue;
      value(MetricId::kSwamped, s, sums.size()) =
          share(static_cast<double>(sum.swamped), static_cast<double>(sum.addends));
      value(MetricId::kSumError, s, sums.size()) =
          error_octaves(sum.err_sq, sum.exact_sq, static_cast<double>(sum.compared));
    }
  }

  void read_exponents() {
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

  void read_lane() {
    const std::vector<double> losses = run_.loss(lane_);
    const auto lane_value = [&](MetricId id, Measured measured) { value(id, 0, 1) = measured; };
    lane_value(MetricId::kDied, {info_.died_at >= 0 ? 1.0 : 0.0});
    if (!losses.empty() && std::isfinite(losses[0])) lane_value(MetricId::kFirstLoss, {losses[0]});
    std::vector<double> finite;
    for (int64_t step = 0; step < steps_; ++step) {
      const double loss = losses[static_cast<size_t>(step)];
      if (!is_skipped(step) && std::isfinite(loss)) finite.push_back(loss);
    }
    if (!finite.empty()) {
      lane_value(MetricId::kEndLoss, {tail_mean(finite)});
      const std::vector<double> reference = run_.loss(kReferenceIndex);
      if (!info_.is_reference && info_.died_at < 0) {
        lane_value(MetricId::kLossGap, {tail_mean(finite) - tail_mean(reference)});
      }
    }
    read_scaler();
    read_parameters();
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

  void read_scaler() {
    double octaves_sum = 0;
    const std::vector<ScalerRecord> scalers = run_.scalers(lane_);
    const auto steps = static_cast<double>(steps_);
    for (int64_t step = 0; step < steps_; ++step) {
      octaves_sum += std::log2(scalers[static_cast<size_t>(step)].scale);
    }
    if (steps_ == 0) return;
    const auto skipped = static_cast<double>(
        std::ranges::count_if(skipped_, [this](int64_t step) { return step < steps_; }));
    value(MetricId::kSkipped, 0, 1) = {skipped / steps, steps};
    if (std::isfinite(octaves_sum)) value(MetricId::kLossScale, 0, 1) = {octaves_sum / steps};
  }

  // Mean logarithm over the steps, of numbers in rows of `width`.
  static std::pair<double, double> first_and_mean(const std::vector<double>& rows, size_t width,
                                                  size_t column) {
    double sum = 0, first = kNan;
    size_t count = 0;
    for (size_t at = column; at < rows.size(); at += width) {
      const double x = std::log2(rows[at]);
      if (!std::isfinite(x)) continue;
      if (at == column) first = x;
      sum += x;
      ++count;
    }
    return {first, count == 0 ? kNan : sum / static_cast<double>(count)};
  }

  void read_parameters() {
    if (!applies(metric_row(MetricId::kGradient)) || run_.steps() == 0) return;
    const auto steps = static_cast<size_t>(run_.steps());
    const std::vector<double> gradients = run_.gradient_norms(lane_), lr = run_.lr(lane_);
    const size_t width = gradients.size() / steps, groups = lr.size() / steps;
    for (size_t p = 0; p < width; ++p) {
      const auto [first, mean] = first_and_mean(gradients, width, p);
      value(MetricId::kFirstGradient, p, width) = {first};
      value(MetricId::kGradient, p, width) = {mean};
    }
    for (size_t g = 0; g < groups; ++g) {
      value(MetricId::kLearningRate, g, groups) = {first_and_mean(lr, groups, g).second};
    }
  }

  const RunFile& run_;
  int lane_;
  const LaneInfo& info_;
  std::set<int64_t> skipped_;
  int64_t steps_ = 0;
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
  RunSummary summary{.steps = run.steps()};
  for (int lane = 0; lane < static_cast<int>(run.lanes().size()); ++lane) {
    if (twin_number(run.lanes()[static_cast<size_t>(lane)].name) > 0) continue;
    summary.lanes.push_back(LaneReader(run, lane).read());
  }
  return summary;
}

std::vector<double> metrics_at(const RunFile& run, int lane, int64_t step,
                               const std::vector<SiteMetric>& asked) {
  std::vector<double> found(asked.size(), kNan);
  const LaneReader reader(run, lane);
  if (step >= reader.steps() || reader.is_skipped(step)) return found;
  const std::vector<Site>& sites = run.sites().sites;
  std::vector<SiteSums> sums(sites.size());
  reader.add_step(step, sums);
  for (size_t i = 0; i < asked.size(); ++i) {
    const auto [metric, site] = asked[i];
    found[i] = reader.of_site(metric, sums[site], sites[site].stat_exempt).value;
  }
  return found;
}

}  // namespace lockstep
