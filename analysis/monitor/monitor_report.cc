// See monitor_report.h.
#include "analysis/monitor/monitor_report.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>

#include "analysis/monitor/live_site.h"

namespace lockstep {
namespace {

constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();
constexpr std::array<std::string_view, 3> kWhatIfs = {"fp16", "fp8_e4m3", "fp8_e5m2"};

// A recipe casts the operands of products: inputs of layers, which are activations of others,
// matrices of weights, gradients of activations.
bool may_be_operand(const Site& site) {
  if (site.role == Role::kWeight) return site.shape.size() > 1;
  return site.role == Role::kActivation || site.role == Role::kGradActivation;
}
// Roles that a format of 16 bits would hold under autocast.
bool may_be_narrow(Role role) {
  return role == Role::kWeight || role == Role::kActivation || is_gradient(role);
}

void add_sample(RangeSample& total, const RangeSample& more) {
  for (size_t bin = 0; bin < total.histogram.size(); ++bin) {
    total.histogram[bin] += more.histogram[bin];
  }
  total.zeros += more.zeros;
}

double share(uint64_t part, uint64_t whole) {
  return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
}

// What the measured steps say of one site, step after step.
class SiteTally {
 public:
  void add_step(const LiveSite& now) {
    const TensorStats& stats = now.record.stats;
    const RangeSample sample = unscaled_sample(now.site, now.record);
    if (out_.site < 0) {
      out_.site = now.site.id;
      out_.sample = sample;
      out_.least_headroom = out_.last_headroom = kUnknown;
    } else {
      add_sample(out_.sample, sample);
    }
    out_.count += stats.count;
    out_.zeros += stats.source_zero;
    out_.nonfinite += now.nonfinite();
    out_.last_largest = now.largest();
    if (std::isfinite(out_.last_largest)) out_.largest = std::max(out_.largest, out_.last_largest);
    if (const std::optional<double> headroom = now.headroom()) {
      out_.last_headroom = *headroom;
      out_.least_headroom =
          std::isnan(out_.least_headroom) ? *headroom : std::min(out_.least_headroom, *headroom);
    }
    if (may_be_operand(now.site)) add_fp8(now);
    if (now.record.update.measured) add_update(now);
  }

  bool was_measured() const { return out_.site >= 0; }
  const LiveSiteReport& place() const { return out_; }
  const std::optional<Fp8Site>& fp8() const { return fp8_; }
  const std::optional<LiveUpdate>& update() const { return update_; }

 private:
  void add_fp8(const LiveSite& now) {
    const Format& format = find_format(now.is_gradient() ? "fp8_e5m2" : "fp8_e4m3");
    if (!fp8_) fp8_ = {.site = now.site.id, .format = format.name};
    fp8_->zeroed = std::max(fp8_->zeroed, now.zeroed_share(format));
    fp8_->saturated = std::max(fp8_->saturated, scale_.saturated_share(now));
  }

  void add_update(const LiveSite& now) {
    const UpdateStats& stats = now.record.update.stats;
    const double stagnant = share(stats.stagnant, stats.count);
    if (!update_) update_ = {.site = now.site.id, .first_stagnant = stagnant};
    update_->relative = std::sqrt(stats.update_sq / stats.weight_sq);
    update_->last_stagnant = stagnant;
    update_->last_stagnant_bf16 = share(now.record.live.stagnant_bf16, stats.count);
  }

  LiveSiteReport out_;
  std::optional<Fp8Site> fp8_;
  std::optional<LiveUpdate> update_;
  DelayedScale scale_;
};

void add_norms(const LaneStep& lane, MonitorReport& out) {
  double update_sq = 0, weight_sq = 0;
  for (const SiteRecord& site : lane.sites) {
    if (!site.update.measured) continue;
    update_sq += site.update.stats.update_sq;
    weight_sq += site.update.stats.weight_sq;
  }
  out.update_norm.push_back(weight_sq > 0 ? std::sqrt(update_sq) : kUnknown);
  out.weight_norm.push_back(weight_sq > 0 ? std::sqrt(weight_sq) : kUnknown);
}

}  // namespace

MonitorReport read_monitor_report(const RunFile& run) {
  constexpr int kLane = 0;
  const LaneInfo& info = run.lanes().front();
  MonitorReport out;
  out.path = run.path();
  out.data = run.data();
  out.damage = run.damage();
  out.every = run.options().measuring.statistics_every;
  out.measured = run.histogram_steps(kLane);
  out.sites = run.sites();
  out.formats = info.site_formats;
  Alarms alarms({&out.sites, &out.formats});
  std::vector<const Format*> formats;
  for (const std::string& name : out.formats) formats.push_back(find_known_format(name));
  std::vector<SiteTally> tallies(out.sites.sites.size());
  StepRecord record;
  record.lanes = {LaneStep()};
  LaneStep& lane = record.lanes.front();
  const std::vector<LaneStep> course = run.course(kLane);
  auto next = out.measured.begin();
  for (int64_t step = 0; step < run.steps(); ++step) {
    record.step = step;
    record.is_measured = next != out.measured.end() && *next == step;
    lane = course[static_cast<size_t>(step)];
    if (record.is_measured) run.read_step(kLane, step, /*histograms=*/true, lane);
    const bool is_skipped_step = is_skipped(lane);
    out.loss.push_back(lane.loss);
    out.scale.push_back(lane.scalers.empty() ? 1 : lane.scalers.front().scale);
    out.gradient_norm.push_back(lane.gradient_norm);
    out.lr.push_back(lane.lr.empty() ? kUnknown : lane.lr.front());
    out.seconds.push_back(lane.seconds);
    if (is_skipped_step) out.skips.push_back(step);
    for (LiveAlarm& alarm : alarms.check(record)) out.alarms.push_back(std::move(alarm));
    if (!record.is_measured) continue;
    ++next;
    add_norms(lane, out);
    for (const Site& site : out.sites.sites) {
      const auto id = static_cast<size_t>(site.id);
      if (!lane.sites[id].measured) continue;
      tallies[id].add_step(
          {site, lane.sites[id], formats.empty() ? nullptr : formats[id], is_skipped_step});
    }
  }
  std::vector<RangeSample> samples;
  for (const SiteTally& tally : tallies) {
    if (!tally.was_measured()) continue;
    out.places.push_back(tally.place());
    if (tally.fp8()) out.fp8.push_back(*tally.fp8());
    if (tally.update()) out.updates.push_back(*tally.update());
    if (may_be_narrow(out.site(tally.place().site).role)) samples.push_back(tally.place().sample);
  }
  // A gradient that overflowed under a loss scale says so of that scale, not of the values.
  for (RangeSample& sample : samples) {
    if (sample.scaled) sample.histogram[kHistogramBins - 1] = 0;
  }
  for (const std::string_view name : kWhatIfs) {
    out.ranges.push_back(make_range_table(samples, find_format(name)));
  }
  return out;
}

}  // namespace lockstep
