// The rules. Each limit is a judgement; its source says whose.
#include "analysis/monitor/alarms.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <limits>
#include <map>
#include <numeric>
#include <optional>

#include "analysis/monitor/live_site.h"
#include "emulation/format/format.h"
#include "src/core/counted.h"

namespace lockstep {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();  // without a sign

double rate_of(const LaneStep& lane) {
  return lane.lr.empty() ? kNan : lane.lr.front();
}

// No weight could move.
bool is_idle(const LaneStep& lane) {
  return is_skipped(lane) || rate_of(lane) == 0;
}

const LaneStep& lane_of(const StepRecord& step) {
  return step.lanes.front();
}

// ---- The step as a whole

// True once when a condition begins to hold.
class Edge {
 public:
  bool rises(bool holds) {
    const bool before = holds_;
    holds_ = holds;
    return holds && !before;
  }

 private:
  bool holds_ = false;
};

// Mean and standard deviation of the last finite values.
class Window {
 public:
  void add(double value) {
    if (!std::isfinite(value)) return;
    values_.push_back(value);
    if (values_.size() > kMost) values_.pop_front();
  }
  // Mean + kSigmas deviations; nothing while there are few values, or all are equal.
  std::optional<double> limit() const {
    if (values_.size() < kLeast) return std::nullopt;
    double square = 0;
    for (const double x : values_) square += (x - mean()) * (x - mean());
    const double deviation = std::sqrt(square / static_cast<double>(values_.size() - 1));
    if (deviation == 0) return std::nullopt;
    return mean() + kSigmas * deviation;
  }
  double mean() const {
    return std::accumulate(values_.begin(), values_.end(), 0.0) /
           static_cast<double>(values_.size());
  }

 private:
  static constexpr size_t kMost = 128, kLeast = 64;
  static constexpr double kSigmas = 6;
  std::deque<double> values_;
};

class LossNotFinite : public AlarmRule {
  void check(const MonitoredSites&, const StepRecord& step,
             std::vector<LiveAlarm>& alarms) override {
    const double loss = lane_of(step).loss;
    // Inference has no loss, and some loops do not show theirs: such a loss was never finite.
    has_loss_ = has_loss_ || !std::isnan(loss);
    if (!edge_.rises(has_loss_ && !std::isfinite(loss))) return;
    alarms.push_back({.sentence = fmt::format("the loss is {}", std::isnan(loss) ? kNan : loss)});
  }
  bool has_loss_ = false;
  Edge edge_;
};

class LossSpike : public AlarmRule {
  void check(const MonitoredSites&, const StepRecord& step,
             std::vector<LiveAlarm>& alarms) override {
    const double loss = lane_of(step).loss;
    const auto limit = seen_.limit();
    if (edge_.rises(limit && std::isfinite(loss) && loss > *limit)) {
      alarms.push_back({.sentence = fmt::format("the loss is {:.4g}, {:.4g} in the mean of the "
                                                "last steps, limit {:.4g}",
                                                loss, seen_.mean(), *limit)});
    }
    seen_.add(loss);
  }
  Window seen_;
  Edge edge_;
};

class GradientSpike : public AlarmRule {
  void check(const MonitoredSites&, const StepRecord& step,
             std::vector<LiveAlarm>& alarms) override {
    const double norm = std::log(lane_of(step).gradient_norm);  // norms are skewed
    const auto limit = seen_.limit();
    if (edge_.rises(limit && std::isfinite(norm) && norm > *limit)) {
      alarms.push_back(
          {.sentence = fmt::format("the gradients' norm is {:.4g}, typically {:.4g} "
                                   "in the last steps, limit {:.4g}",
                                   std::exp(norm), std::exp(seen_.mean()), std::exp(*limit))});
    }
    seen_.add(norm);
  }
  Window seen_;
  Edge edge_;
};

class FarAboveStart : public AlarmRule {
  static constexpr int64_t kFirst = 100;
  static constexpr double kTimes = 10;

  void check(const MonitoredSites&, const StepRecord& step,
             std::vector<LiveAlarm>& alarms) override {
    const double norm = lane_of(step).gradient_norm;
    if (!std::isfinite(norm)) return;
    if (step.step < kFirst) {
      largest_ = std::max(largest_, norm);
      return;
    }
    if (!edge_.rises(largest_ > 0 && norm >= kTimes * largest_)) return;
    alarms.push_back({.sentence = fmt::format("the gradients' norm is {:.4g}, at least {:g} times "
                                              "the largest of the first {} steps, {:.4g}",
                                              norm, kTimes, kFirst, largest_)});
  }
  double largest_ = 0;
  Edge edge_;
};

class Skips : public AlarmRule {
  static constexpr size_t kMost = 3, kWithin = 20;

  void check(const MonitoredSites&, const StepRecord& step,
             std::vector<LiveAlarm>& alarms) override {
    const bool skipped = is_skipped(lane_of(step));
    has_taken_ = has_taken_ || !skipped;
    if (!has_taken_) return;  // the first scale is still falling
    last_.push_back(skipped);
    if (last_.size() > kWithin) last_.pop_front();
    const auto count = static_cast<size_t>(std::ranges::count(last_, true));
    if (!edge_.rises(count > kMost)) return;
    alarms.push_back(
        {.sentence = fmt::format("the scaler skipped {} of the last {} steps, more "
                                 "than {}; its scale is {:g}",
                                 count, last_.size(), kMost, lane_of(step).scalers.front().scale)});
  }
  bool has_taken_ = false;
  std::deque<bool> last_;
  Edge edge_;
};

class LowScale : public AlarmRule {
  void check(const MonitoredSites&, const StepRecord& step,
             std::vector<LiveAlarm>& alarms) override {
    const double scale = lane_of(step).scalers.front().scale;
    if (!edge_.rises(scale < 1)) return;
    alarms.push_back({.sentence = fmt::format("the loss scale is {:g}, below 1: it makes gradients "
                                              "smaller, and something still overflows",
                                              scale)});
  }
  Edge edge_;
};

class UpdateNorm : public AlarmRule {
  static constexpr size_t kRecords = 8, kLeast = 4;
  static constexpr double kTimes = 2;

  void check(const MonitoredSites&, const StepRecord& step,
             std::vector<LiveAlarm>& alarms) override {
    double square = 0;
    for (const SiteRecord& site : lane_of(step).sites) {
      if (site.update.measured) square += site.update.stats.update_sq;
    }
    // Without the learning rate, which a warm-up raises.
    const double rate = rate_of(lane_of(step));
    const double norm = std::sqrt(square) / (rate > 0 ? rate : 1);
    if (!step.is_measured || !(norm > 0) || !std::isfinite(norm)) return;
    std::vector<double> before(seen_.begin(), seen_.end());
    std::ranges::sort(before);
    const double usual = before.empty() ? norm : before[before.size() / 2];
    if (edge_.rises(before.size() >= kLeast && norm >= kTimes * usual)) {
      alarms.push_back({.sentence = fmt::format("the norm of all updates over the learning rate is "
                                                "{:.4g}, {:.3g} times the median of the last {} "
                                                "measured steps, {:.4g}",
                                                norm, norm / usual, before.size(), usual)});
    }
    seen_.push_back(norm);
    if (seen_.size() > kRecords) seen_.pop_front();
  }
  std::deque<double> seen_;
  Edge edge_;
};

// ---- Sites

// A rule over each site of a measured step alone.
class SiteRule : public AlarmRule {
 public:
  void check(const MonitoredSites& sites, const StepRecord& step,
             std::vector<LiveAlarm>& alarms) override {
    if (!step.is_measured) return;
    const LaneStep& lane = lane_of(step);
    std::optional<LiveAlarm> told;
    double worst = 0;
    size_t count = 0;
    for (const Site& site : sites.table->sites) {
      const SiteRecord& record = lane.sites[static_cast<size_t>(site.id)];
      if (!record.measured) continue;
      const std::string& format = sites.formats->at(static_cast<size_t>(site.id));
      const LiveSite now{site, record, find_known_format(format), is_skipped(lane), is_idle(lane)};
      Found found = judge(now);
      if (!edges_[site.id].rises(found.badness > 0)) continue;
      ++count;
      if (told && (is_of_nonfinite() || found.badness <= worst)) continue;
      worst = found.badness;
      const LiveStats& live = record.live;
      told = {
          .site = site.id,
          .rank = is_of_nonfinite() ? live.nonfinite_rank : live.largest_rank,
          .micro_batch = is_of_nonfinite() ? live.nonfinite_micro_batch : live.largest_micro_batch,
          .sentence = std::move(found.sentence)};
    }
    if (!told) return;
    told->more = count - 1;
    alarms.push_back(*std::move(told));
  }

 protected:
  struct Found {
    double badness = 0;  // 0: well
    std::string sentence;
  };
  virtual Found judge(const LiveSite& now) = 0;
  // Of values that are not finite: they spread, so the first site in the order of execution is
  // named. Of others the worst one is.
  virtual bool is_of_nonfinite() const { return false; }

 private:
  std::map<int32_t, Edge> edges_;
};

class NotFinite : public SiteRule {
  Found judge(const LiveSite& now) override {
    const uint64_t bad = now.nonfinite();
    const bool is_scalers = now.is_gradient() && now.step_is_skipped;  // the scaler saw to it
    if (bad == 0 || is_scalers) return {};
    return {static_cast<double>(bad), fmt::format("{} of {} are not finite", bad,
                                                  counted(now.record.stats.count, "element"))};
  }
  bool is_of_nonfinite() const override { return true; }
};

class AttentionLogits : public SiteRule {
  static constexpr double kMost = 100;
  Found judge(const LiveSite& now) override {
    const double largest = now.record.stats.abs_max;
    if (now.site.op != kAttentionLogits || !(largest > kMost)) return {};
    return {largest, fmt::format("a logit of attention is {:.4g}, above {:g}", largest, kMost)};
  }
};

class ZeroGradient : public SiteRule {
  static constexpr int kLeast = 2;  // an expert that no token reached has one such step

  Found judge(const LiveSite& now) override {
    if (now.site.role != Role::kGradWeight) return {};
    const TensorStats& stats = now.record.stats;
    Seen& seen = seen_[now.site.id];
    seen.zero_steps = stats.source_zero == stats.count ? seen.zero_steps + 1 : 0;
    if (seen.zero_steps == 0) seen.was_nonzero = true;
    if (seen.zero_steps < kLeast || !seen.was_nonzero) return {};
    return {1, fmt::format("all {} are zero in {} measured steps, and were not before",
                           counted(stats.count, "element"), kLeast)};
  }
  struct Seen {
    int zero_steps = 0;
    bool was_nonzero = false;
  };
  std::map<int32_t, Seen> seen_;
};

class Headroom : public SiteRule {
  static constexpr size_t kRecords = 3;
  static constexpr double kLeast = 1;  // octaves

  Found judge(const LiveSite& now) override {
    const std::optional<double> headroom = now.headroom();
    if (!headroom || now.site.scaled) return {};  // a loss scale grows until something overflows
    std::deque<double>& before = before_[now.site.id];
    const double mean = std::accumulate(before.begin(), before.end(), 0.0) /
                        static_cast<double>(std::max<size_t>(before.size(), 1));
    const bool falls = before.size() == kRecords && *headroom < mean;
    before.push_back(*headroom);
    if (before.size() > kRecords) before.pop_front();
    bool& is_low = is_low_[now.site.id];  // until it is well again
    is_low = *headroom < kLeast && (is_low || falls);
    if (!is_low) return {};
    return {kLeast - *headroom + 1,
            fmt::format("the largest value is {:.4g}, {:.2g} octaves below {}'s largest number "
                        "{:g}; {:.2g} in the mean of the {} measured steps before",
                        now.record.stats.abs_max, *headroom, now.format->name,
                        now.format->max_finite, mean, kRecords)};
  }
  std::map<int32_t, std::deque<double>> before_;
  std::map<int32_t, bool> is_low_;
};

class Stagnation : public SiteRule {
  static constexpr double kMost = 0.5;

  Found judge(const LiveSite& now) override {
    const UpdateStats& update = now.record.update.stats;
    if (!now.record.update.measured || update.count == 0 || now.step_is_idle) return {};
    const double share = static_cast<double>(update.stagnant) / static_cast<double>(update.count);
    const auto first = first_.emplace(now.site.id, share).first;
    if (share < kMost || first->second >= kMost) return {};
    return {share, fmt::format("{:.0f} % of the updated weights keep their value, {:.0f} % in the "
                               "first measured step: the updates are below half an ulp of {}",
                               100 * share, 100 * first->second,
                               now.format == nullptr ? "the weights" : now.format->name)};
  }
  std::map<int32_t, double> first_;
};

// Delayed scaling takes the scale from the largest value of earlier steps.
class Saturation : public SiteRule {
  static constexpr double kMost = 1e-3;

  Found judge(const LiveSite& now) override {
    if (!now.is_quantised()) return {};
    DelayedScale& scale = scales_[now.site.id];
    const double share = scale.saturated_share(now);
    if (share <= kMost) return {};
    return {share, fmt::format("at least {:.2g} % of the values are above {:.4g}, the largest of "
                               "the measured steps before: a scale from earlier steps saturates "
                               "them",
                               100 * share, scale.largest_before())};
  }
  std::map<int32_t, DelayedScale> scales_;
};

class Fp8Underflow : public SiteRule {
  static constexpr double kMost = 0.05;

  Found judge(const LiveSite& now) override {
    if (!now.is_quantised()) return {};
    const Format& format = find_format(now.is_gradient() ? "fp8_e5m2" : "fp8_e4m3");
    const double share = now.zeroed_share(format);
    if (share <= kMost) return {};
    return {share, fmt::format("{:.2g} % of the nonzero values become zero in {} with a scale for "
                               "the whole tensor, more than {:g} %",
                               100 * share, format.name, 100 * kMost)};
  }
};

template <typename Rule>
std::unique_ptr<AlarmRule> make() {
  return std::make_unique<Rule>();
}

}  // namespace

std::span<const AlarmRow> alarm_rows() {
  static const AlarmRow rows[] = {
      {"loss-not-finite", "the loss is infinite or NaN", "every trainer", make<LossNotFinite>},
      {"not-finite",
       "values of a layer are infinite or NaN, but not gradients of a step that the scaler skips",
       "torchtitan#4026 asks for layer, rank and micro-batch", make<NotFinite>},
      {"loss-spike", "the loss is above the mean of the last 128 steps by 6 standard deviations",
       "OLMo", make<LossSpike>},
      {"gradient-spike",
       "the logarithm of the gradients' norm is above its mean by 6 standard deviations", "OLMo",
       make<GradientSpike>},
      {"gradient-far-above-start",
       "the gradients' norm is 10 times the largest of the first 100 steps", "Megatron-LM",
       make<FarAboveStart>},
      {"skips", "the scaler skipped more than 3 of the last 20 steps", "docs/trigger.md",
       make<Skips>},
      {"low-scale", "the loss scale is below 1", "apex, DeepSpeed stop at their smallest scale",
       make<LowScale>},
      {"update-norm",
       "the norm of all updates over the learning rate doubles: it precedes spikes of the loss",
       "marin#1368", make<UpdateNorm>},
      {"attention-logits", "a logit of attention is above 100", "ViT-22B, section 2",
       make<AttentionLogits>},
      {"zero-gradient",
       "all gradients of a weight are zero in two measured steps, and were not before",
       "Megatron-LM", make<ZeroGradient>},
      {"fp8-underflow",
       "more than 5 % of a quantised tensor's values become zero with a scale for the whole tensor",
       "msprobe", make<Fp8Underflow>},
      {"headroom", "less than an octave is left to the format's largest number, and it falls",
       "Lockstep", make<Headroom>},
      {"stagnation", "half of the updated weights keep their value, and fewer did at the start",
       "Lockstep", make<Stagnation>},
      {"saturation",
       "values of a quantised tensor are above the largest of up to 16 measured steps before: a "
       "scale from those steps cuts them",
       "Lockstep", make<Saturation>},
  };
  return rows;
}

Alarms::Alarms(MonitoredSites sites) : sites_(sites) {
  for (const AlarmRow& row : alarm_rows()) rules_.push_back(row.make());
}

std::vector<LiveAlarm> Alarms::check(const StepRecord& step) {
  std::vector<LiveAlarm> alarms;
  for (size_t i = 0; i < rules_.size(); ++i) {
    const size_t before = alarms.size();
    rules_[i]->check(sites_, step, alarms);
    for (size_t k = before; k < alarms.size(); ++k) {
      alarms[k].rule = alarm_rows()[i].name;
      alarms[k].step = step.step;
    }
  }
  return alarms;
}

}  // namespace lockstep
