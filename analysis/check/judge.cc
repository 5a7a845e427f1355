// See judge.h.
#include "analysis/check/judge.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "analysis/check/alarm_order.h"
#include "analysis/check/alarm_origin.h"
#include "analysis/check/alarm_sentence.h"
#include "analysis/check/changed_code.h"
#include "analysis/check/draw_choice.h"
#include "analysis/check/joined_values.h"
#include "analysis/check/judged_run.h"
#include "analysis/check/limit_range.h"
#include "analysis/check/metric_keys.h"
#include "analysis/check/parted_pairs.h"
#include "analysis/check/rule_use.h"
#include "emulation/format/format.h"
#include "src/core/counted.h"
#include "src/core/text.h"
#include "src/train/run_option_rows.h"

namespace lockstep {
namespace {

// Of the numbers that were not measured, those that are named.
constexpr size_t kNamedMissing = 10;
// An error where the baseline's runs had none: less than FP32's own rounding is none.
constexpr double kLeastNewError = -22;

class Judge {
 public:
  Judge(const RunFile& run, const Baseline& baseline, const CheckOptions& options)
      : run_(run, baseline), options_(options), rules_(options.rules, options.today) {}

  CheckResult judge() {
    result_.run = run_.file.path();
    result_.baseline = run_.baseline.path;
    result_.alpha = options_.alpha;
    result_.changes = run_.lines.changes;
    result_.sites = run_.match.sites.size();
    result_.sites_matched = run_.match.sites.pair_count();
    result_.missing = run_.lines.no_match;
    result_.remarks = run_.lines.extra;
    result_.steps = std::min(run_.file.steps(), run_.baseline.run.steps);
    environment();
    compare_bits();
    if (is_comparable()) {
      join_parameters();
      const DrawChoice chosen = choose_draw(run_, joined_);
      result_.draw = chosen.draw;
      const Ensemble& ensemble = run_.baseline.ensemble(result_.draw);
      result_.runs = ensemble.runs;
      if (ensemble.is_usable()) {
        few_runs(ensemble);
        if (result_.first_other_bits >= 0) {
          parted_ = parted_pairs(run_, ensemble, result_.draw, options_.alpha);
          result_.sites_matched -= parted_.size();
        }
        judge_lanes(ensemble);
      } else {
        lacks_ensemble(chosen);
      }
    }
    rules_.ignore(result_.alarms);
    rules_.report(result_);
    if (result_.draw == Draw::kSame) set_aside_changed_code(run_, result_);
    sort_alarms(result_);
    locate_alarms(run_, first_other_bits_, parted_, result_);
    decide();
    return std::move(result_);
  }

 private:
  void environment() {
    for (const EnvironmentDifference& d : run_.match.environment) {
      if (d.before.empty()) continue;
      result_.remarks.push_back(fmt::format("environment {}: {} here, {} in the baseline", d.name,
                                            d.after.empty() ? "nothing" : d.after, d.before));
    }
  }

  // The first step in which some lane's bits are not the recorded run's.
  void compare_bits() {
    for (size_t lane = 0; lane < run_.baseline.run.lanes.size(); ++lane) {
      const int at = run_.lane_here[lane];
      if (at < 0) continue;
      const std::vector<std::string>& before = run_.baseline.step_bits[lane];
      const std::vector<std::string>& now = run_.summary.lanes[static_cast<size_t>(at)].step_bits;
      for (size_t step = 0; step < std::max(before.size(), now.size()); ++step) {
        if (step < before.size() && step < now.size() && before[step] == now[step]) continue;
        const auto first = static_cast<int64_t>(step);
        first_other_bits_[run_.facts.lanes[static_cast<size_t>(at)].name] = first;
        if (result_.first_other_bits < 0 || first < result_.first_other_bits) {
          result_.first_other_bits = first;
        }
        break;
      }
    }
  }

  bool is_comparable() {
    if (result_.sites_matched == 0) {
      result_.why_inconclusive.push_back("no site of the run has a counterpart in the baseline");
    }
    if (std::ranges::all_of(run_.lane_here, [](int lane) { return lane < 0; })) {
      result_.why_inconclusive.push_back("no lane of the run has a counterpart in the baseline");
    }
    const RunOptions& before = run_.baseline.run.options;
    // Its numbers, right as they may be, say nothing of the baseline's.
    for (const SetupDifference& d :
         setup_differences(run_.file.options(), before, OptionEffect::kReplay)) {
      result_.why_inconclusive.push_back(difference_text(d));
    }
    for (const SetupDifference& d :
         setup_differences(run_.file.options(), before, OptionEffect::kRepeat)) {
      result_.remarks.push_back(difference_text(d));
    }
    const std::string others = other_measured_steps(run_.file.options(), before);
    if (!others.empty()) result_.why_inconclusive.push_back(others);
    if (run_.file.steps() < run_.baseline.run.steps) {
      const int64_t last = run_.baseline.run.steps - 1;
      result_.missing.push_back(fmt::format(
          "{}: the run has {}, the baseline {}",
          run_.file.steps() == last ? fmt::format("step {}", last)
                                    : fmt::format("steps {} to {}", run_.file.steps(), last),
          counted(static_cast<uint64_t>(run_.file.steps()), "step"), run_.baseline.run.steps));
    } else if (run_.file.steps() > run_.baseline.run.steps) {
      result_.why_inconclusive.push_back(
          fmt::format("the run has {} steps, the baseline {}: means over other steps cannot be "
                      "compared",
                      run_.file.steps(), run_.baseline.run.steps));
    }
    return result_.why_inconclusive.empty();
  }

  void join_parameters() {
    joined_ = find_joined(run_);
    name_joined(run_, joined_, result_);
  }

  void few_runs(const Ensemble& ensemble) {
    const std::string few = few_runs_text(result_.draw, ensemble.runs);
    if (few.empty()) return;
    result_.remarks.push_back(
        fmt::format("{} (`lockstep baseline record ... {} 12`)", few,
                    result_.draw == Draw::kSame ? "--members" : option_name(&RunOptions::seeds)));
  }

  void lacks_ensemble(const DrawChoice& chosen) {
    if (result_.draw == Draw::kSame) {
      result_.why_inconclusive.push_back(fmt::format(
          "the baseline has {} from weights moved by one ulp, but limits need at least {}: "
          "`lockstep baseline record ... --members N`",
          counted(static_cast<uint64_t>(result_.runs), "run"), kFewestRuns));
      return;
    }
    // Each is an alarm by itself, but not of another model.
    const bool is_same_model = run_.match.parameters.free_before().empty();
    if ((is_same_model && !run_.lines.settings.empty()) ||
        std::ranges::any_of(run_.lines.settings, &SettingChange::changes_draw)) {
      changed_settings();
      return;
    }
    const std::string_view limits = run_.is_captured()
                                        ? "`lockstep baseline record ... --other-captures A,B,...`"
                                        : "`lockstep baseline record ... --seeds N`";
    if (chosen.has_other_weights && run_.is_captured()) {
      result_.why_inconclusive.push_back(fmt::format(
          "{}: the script draws others than the baseline's. Start from the old ones: "
          "`torch.save(model.state_dict(), \"start.pt\")` before the capture in the old script, "
          "`model.load_state_dict(torch.load(\"start.pt\"))` in the new, then `torch.manual_seed` "
          "in both; or record limits for other weights ({})",
          chosen.why, limits));
      return;
    }
    result_.why_inconclusive.push_back(
        fmt::format("{}, but the baseline has no limits for other seeds: {}", chosen.why, limits));
  }

  // Index in the run, -1: no counterpart.
  int counterpart(const Metric& metric, size_t subject) const {
    switch (metric.of) {
      case MetricOf::kSite:
        return parted_.contains(subject) ? -1 : run_.match.sites.after_of(subject);
      case MetricOf::kParameter:
        return run_.match.parameters.after_of(subject);
      case MetricOf::kGroup:
      case MetricOf::kLane:
        break;
    }
    return static_cast<int>(subject);
  }

  // visit(lane, metric, subject, band, what the run has or null).
  template <typename Visit>
  void each_number(const Ensemble& ensemble, Visit visit) {
    for (size_t lane = 0; lane < ensemble.lanes.size(); ++lane) {
      if (run_.lane_here[lane] < 0) continue;
      const LaneSummary& now = run_.lane_now(lane);
      for (const Metric& metric : metrics()) {
        if (metric.id == MetricId::kExponents || !is_judgeable(metric)) continue;
        const std::vector<Band>& bands = ensemble.lanes[lane].bands[static_cast<size_t>(metric.id)];
        for (size_t s = 0; s < bands.size(); ++s) {
          if (!bands[s].is_there()) continue;
          const int at = counterpart(metric, s);
          if (at < 0) continue;
          const Measured* found = now.find(metric.id, static_cast<size_t>(at));
          visit(lane, metric, s, bands[s], found == nullptr ? Measured{} : *found);
        }
      }
      each_exponent(ensemble.lanes[lane], now, lane, visit);
    }
  }
  // Means over other steps cannot be compared; the first step can.
  bool is_judgeable(const Metric& metric) const {
    return metric.first_step || run_.file.steps() == run_.baseline.run.steps;
  }
  template <typename Visit>
  void each_exponent(const LaneBands& before, const LaneSummary& now, size_t lane, Visit visit) {
    if (!is_judgeable(metric_row(MetricId::kExponents))) return;
    for (size_t s = 0; s < before.exponents.size(); ++s) {
      const int at = parted_.contains(s) ? -1 : run_.match.sites.after_of(s);
      const Band* band = before.find(MetricId::kExponents, s);
      if (!before.has_exponents[s] || at < 0 || band == nullptr) continue;
      const auto here = static_cast<size_t>(at);
      Measured apart;
      if (here < now.has_exponents.size() && now.has_exponents[here]) {
        apart.value = distance(before.exponents[s], now.exponents[here]);
      }
      visit(lane, metric_row(MetricId::kExponents), s, *band, apart);
    }
  }

  void judge_lanes(const Ensemble& ensemble) {
    count_families(ensemble);
    basis_ = {.factor = limit_factor(ensemble.runs, options_.alpha, result_.judged),
              .draw = result_.draw,
              .ensemble = ensemble_text(),
              .rules_path = options_.rules.path};
    const MetricKeys keys(run_.baseline);
    std::set<std::string> missing;
    each_number(ensemble, [&](size_t lane, const Metric& metric, size_t subject, const Band& band,
                              const Measured& now) {
      if (now.is_there()) {
        judge_number(lane, metric, subject, band, now);
      } else if (band.always && metric.id == MetricId::kFirstGradient) {
        no_gradient(lane, metric, subject);
      } else if (band.always && !is_in_changed_code(metric, subject) &&
                 missing.size() < kNamedMissing) {
        missing.insert(keys.of(lane, metric.id, subject) + ": not measured here");
      }
    });
    result_.missing.insert(result_.missing.end(), missing.begin(), missing.end());
    for (const JoinedGradient& one : joined_gradients(run_, joined_, ensemble)) {
      ++result_.judged;
      judge_number(one.lane, metric_row(MetricId::kFirstGradient), one.parameter, one.before,
                   one.now);
    }
    other_inputs();
    new_nonfinite(ensemble);
    new_findings();
    changed_settings();
  }

  // A site that was matched there may be one that measures less: an operand that no cast feeds.
  bool is_in_changed_code(const Metric& metric, size_t subject) const {
    return run_.places.has_changed_code && metric.of == MetricOf::kSite &&
           !run_.places.certain[subject];
  }

  // With the recorded weights and batches the numbers show whether a changed setting matters; it is
  // then named first. Other seeds hide its effect, so that the change alone is an alarm.
  void changed_settings() {
    if (result_.draw == Draw::kSame && result_.alarms.empty()) return;
    for (const SettingChange& change : run_.lines.settings) {
      Alarm alarm;
      alarm.lane = run_.facts.lanes[0].name;
      alarm.layer = change.layer;
      alarm.op = change.op;
      alarm.source_line = change.source_line;
      alarm.finding = kSetting;
      alarm.times = std::numeric_limits<double>::infinity();
      alarm.limit_from = "the baseline's own setting";
      alarm.sentence = change.text;
      result_.alarms.push_back(std::move(alarm));
    }
  }

  // A number that the run lacks is missing, not judged.
  void count_families(const Ensemble& ensemble) {
    std::map<std::pair<size_t, MetricId>, size_t> numbers;
    each_number(ensemble,
                [&](size_t lane, const Metric& metric, size_t, const Band&, const Measured& now) {
                  if (now.is_there()) ++numbers[{lane, metric.id}];
                });
    for (const auto& [key, count] : numbers) {
      const auto& [lane, metric] = key;
      const auto at = static_cast<size_t>(run_.lane_here[lane]);
      result_.families.push_back({run_.facts.lanes[at].name, metric, count});
      result_.judged += count;
    }
  }

  // Sites that the ensemble never measured as such cannot be in it; those with NaN on both sides
  // are counted, not alarms.
  void new_nonfinite(const Ensemble& ensemble) {
    each_number(ensemble,
                [&](size_t, const Metric& metric, size_t, const Band& band, const Measured& now) {
                  if (metric.id == MetricId::kNonfinite && band.centre > 0 && now.value > 0) {
                    ++result_.shared_nonfinite;
                  }
                });
  }

  // In octaves, an error that is new where the baseline's runs had none: less is FP32's own
  // rounding, or one rounding to the site's format that another op did before.
  double least_new_error(size_t lane, int site) const {
    const auto at =
        static_cast<size_t>(run_.lane_in_run[static_cast<size_t>(run_.lane_here[lane])]);
    const std::vector<std::string>& formats = run_.file.lanes()[at].site_formats;
    const auto here = static_cast<size_t>(site);
    if (here >= formats.size() || formats[here].empty()) return kLeastNewError;
    return std::max(kLeastNewError, static_cast<double>(-find_format(formats[here]).precision));
  }

  void judge_number(size_t lane, const Metric& metric, size_t subject, const Band& band,
                    const Measured& now) {
    if (now.is_exact()) return;  // an error of zero is never too large
    if (band.is_exact() && now.value < least_new_error(lane, counterpart(metric, subject))) return;
    Alarm alarm{.metric = metric.id, .value = now.value, .expected = band.centre};
    place(alarm, lane, metric, subject);
    const LimitRange range = limit_range(metric, band, basis_, rules_.limit_for(alarm));
    const bool is_above = now.value > range.high;
    if (!is_above && now.value >= range.low) return;
    alarm.limit = is_above ? range.high : range.low;
    const double allowed = is_above ? range.high - band.centre : band.centre - range.low;
    alarm.times = allowed > 0 && std::isfinite(allowed)
                      ? std::fabs(now.value - band.centre) / allowed
                      : std::numeric_limits<double>::infinity();
    alarm.limit_from = range.from;
    if (metric.first_step) alarm.step = 0;
    const bool is_worse = metric.worse == WorseIf::kEither || is_above;
    (is_worse ? result_.alarms : result_.improvements).push_back(std::move(alarm));
  }

  std::string ensemble_text() const { return runs_text(result_.draw, result_.runs); }

  void place(Alarm& alarm, size_t lane, const Metric& metric, size_t subject) const {
    alarm.lane = run_.facts.lanes[static_cast<size_t>(run_.lane_here[lane])].name;
    const int at = counterpart(metric, subject);
    if (metric.of == MetricOf::kSite) {
      const SiteFacts& site = run_.facts.sites[static_cast<size_t>(at)];
      alarm.site = at;
      alarm.layer = site.layer;
      alarm.op = site.op;
      alarm.role = site.role;
      alarm.point = site.point;
      alarm.source_line =
          is_input(site) ? line_of_input(site)
          : site.source_line.empty()
              ? run_.script.line_of_node(run_.file.sites().sites[static_cast<size_t>(at)].node)
              : site.source_line;
    } else if (metric.id == MetricId::kLossScale || metric.id == MetricId::kSkipped) {
      alarm.source_line = run_.script.line_of(kScalerLine);
    } else if (metric.of != MetricOf::kLane) {
      if (metric.of == MetricOf::kGroup) {
        alarm.source_line = run_.script.line_of("optimizer lr");
      } else if (at >= 0) {
        alarm.source_line =
            run_.script.line_of_tensor(run_.facts.parameters[static_cast<size_t>(at)].name);
      }
      alarm.parameter = at < 0 ? subject_text(run_.baseline.run, metric, subject)
                               : subject_text(run_.facts, metric, static_cast<size_t>(at));
    }
  }

  void no_gradient(size_t lane, const Metric& metric, size_t subject) {
    Alarm alarm{.metric = metric.id};
    place(alarm, lane, metric, subject);
    const int at = counterpart(metric, subject);
    if (at >= 0) {
      const std::string& name = run_.facts.parameters[static_cast<size_t>(at)].name;
      alarm.source_line = run_.script.line_of_frozen(name);
    }
    alarm.finding = kNoGradient;
    alarm.step = 0;
    alarm.times = std::numeric_limits<double>::infinity();
    alarm.limit_from = "the baseline, in which it has one";
    alarm.sentence = alarm.parameter + " has no gradient; in the baseline it has one";
    result_.alarms.push_back(std::move(alarm));
  }

  static bool is_input(const SiteFacts& site) {
    return site.point == to_string(Point::kStorage) && site.role == to_string(Role::kInput);
  }
  // Where the batches come from, if that was changed; else where this one is first read.
  std::string line_of_input(const SiteFacts& site) const {
    const std::string made = run_.script.changed_line_of(kBatchesLine);
    return made.empty() ? site.source_line : made;
  }

  // A batch of another shape is another training.
  void other_inputs() {
    for (size_t s = 0; s < run_.match.sites.size(); ++s) {
      const SiteFacts& before = run_.baseline.run.sites[s];
      if (run_.match.sites.after_of(s) < 0 || !is_input(before)) continue;
      const SiteFacts& after = run_.facts.sites[static_cast<size_t>(run_.match.sites.after_of(s))];
      if (before.shape == after.shape) continue;
      Alarm alarm;
      alarm.lane = run_.facts.lanes[0].name;
      alarm.site = run_.match.sites.after_of(s);
      alarm.role = after.role;
      alarm.point = after.point;
      alarm.source_line = line_of_input(after);
      alarm.finding = kOtherInputs;
      alarm.step = 0;
      alarm.times = std::numeric_limits<double>::infinity();
      alarm.limit_from = "the baseline's batches";
      alarm.sentence =
          fmt::format("the batch has the shape {}; in the baseline {}", after.shape, before.shape);
      result_.alarms.push_back(std::move(alarm));
    }
  }

  void new_findings() {
    for (size_t lane = 0; lane < run_.lane_here.size(); ++lane) {
      if (run_.lane_here[lane] < 0) continue;
      const LaneSummary& now = run_.lane_now(lane);
      for (const std::string& kind : now.findings) {
        if (std::ranges::count(run_.baseline.findings[lane], kind) > 0) continue;
        Alarm alarm;
        alarm.lane = now.name;
        alarm.finding = kind;
        alarm.times = std::numeric_limits<double>::infinity();
        alarm.limit_from = ensemble_text() + ", none of which has such a finding";
        describe_finding(run_.file, run_.lane_in_run[static_cast<size_t>(run_.lane_here[lane])],
                         kind, alarm);
        result_.alarms.push_back(std::move(alarm));
      }
    }
  }

  void decide() {
    const bool nothing_judged = result_.judged == 0;
    const bool has_ignored =
        std::ranges::any_of(result_.ignored, [](const Ignored& rule) { return rule.alarms > 0; });
    if (!result_.alarms.empty()) {
      result_.verdict = CheckVerdict::kRegression;
    } else if (result_.first_other_bits < 0 && result_.missing.empty() &&
               run_.lines.changes.empty() && result_.why_inconclusive.empty()) {
      result_.verdict = CheckVerdict::kIdentical;
    } else if (!result_.why_inconclusive.empty() || nothing_judged) {
      result_.verdict = CheckVerdict::kInconclusive;
    } else if (!result_.missing.empty()) {
      result_.verdict = CheckVerdict::kIncomplete;
    } else {
      result_.verdict = result_.improvements.empty() || has_ignored ? CheckVerdict::kWithinNoise
                                                                    : CheckVerdict::kImproved;
    }
  }

  const JudgedRun run_;
  const CheckOptions& options_;
  RuleUse rules_;
  std::vector<JoinedParameter> joined_;
  std::set<size_t> parted_;  // pairs whose values differ, by site of the baseline
  FirstOtherBits first_other_bits_;
  LimitBasis basis_;
  CheckResult result_;
};

}  // namespace

CheckResult judge_run(const RunFile& run, const Baseline& baseline, const CheckOptions& options) {
  return Judge(run, baseline, options).judge();
}

}  // namespace lockstep
