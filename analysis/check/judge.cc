// See judge.h.
#include "analysis/check/judge.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <span>

#include "analysis/check/alarm_sentence.h"
#include "analysis/check/change_lines.h"
#include "analysis/check/joined_parameters.h"
#include "analysis/check/limit_range.h"
#include "analysis/check/metric_keys.h"
#include "analysis/check/rule_use.h"
#include "analysis/check/script_places.h"
#include "analysis/check/shared_places.h"
#include "analysis/findings/finding_kinds.h"
#include "analysis/pair/parameter_state.h"
#include "emulation/format/format.h"
#include "src/capture/capture.h"
#include "src/core/counted.h"
#include "src/core/text.h"
#include "src/train/run_option_rows.h"

namespace lockstep {
namespace {

// Alarms whose first step is looked for in the run file.
constexpr size_t kLocatedAlarms = 10;
// An error where the baseline's runs had none: less than FP32's own rounding is none.
constexpr double kLeastNewError = -22;
// The weights of two runs of one draw differ by an ulp, 2^-23 of each; their norms by less.
constexpr double kSameDrawOctaves = 0x1p-20;
// A rewrite rounds anew: limits of narrow lanes hold a fourth of what rounding does (baseline.cc,
// kRoundingShare); another rounding of that size may have the other sign, and lies twice as far.
// Not so where casts changed: a head cast to 16 bits does 2.2 times the limit.
constexpr double kRewriteTimes = 8;
// Errors of sampled sums, which then have other addends, are octaves, and their limit is wide.
constexpr double kRewriteSumTimes = 2;

class Judge {
 public:
  Judge(const RunFile& run, const Baseline& baseline, const CheckOptions& options)
      : run_(run),
        baseline_(baseline),
        options_(options),
        rules_(options.rules, options.today),
        summary_(summarize(run)),
        facts_(facts_without_twins(run)),
        match_(match_runs(baseline.run, facts_)),
        lines_(change_lines(baseline.run, facts_, match_)),
        places_(shared_places(baseline.run, facts_, match_)),
        script_(baseline.run, facts_),
        lane_here_(baseline.run.lanes.size(), -1) {
    for (const LaneFacts& lane : facts_.lanes) lane_in_run_.push_back(run.lane_index(lane.name));
    for (const LanePair& pair : match_.lanes) {
      if (pair.is_same_lane()) lane_here_[static_cast<size_t>(pair.before)] = pair.after;
    }
  }

  CheckResult judge() {
    result_.run = run_.path();
    result_.baseline = baseline_.path;
    result_.alpha = options_.alpha;
    result_.changes = lines_.changes;
    result_.sites = match_.sites.size();
    result_.sites_matched = match_.sites.pair_count();
    result_.missing = lines_.no_match;
    result_.remarks = lines_.extra;
    result_.steps = std::min(run_.steps(), baseline_.run.steps);
    environment();
    compare_bits();
    if (is_comparable()) {
      choose_draw();
      const Ensemble& ensemble = baseline_.ensemble(result_.draw);
      result_.runs = ensemble.runs;
      if (ensemble.is_usable()) {
        few_runs(ensemble);
        part_doubtful_pairs(ensemble);
        part_commuted_operands(ensemble);
        judge_lanes(ensemble);
      } else {
        lacks_ensemble();
      }
    }
    rules_.ignore(result_.alarms);
    rules_.report(result_);
    set_aside_changed_code();
    sort_alarms();
    locate();
    decide();
    return std::move(result_);
  }

 private:
  void environment() {
    for (const EnvironmentDifference& d : match_.environment) {
      if (d.before.empty()) continue;
      result_.remarks.push_back(fmt::format("environment {}: {} here, {} in the baseline", d.name,
                                            d.after.empty() ? "nothing" : d.after, d.before));
    }
  }

  // The first step in which some lane's bits are not the recorded run's.
  void compare_bits() {
    for (size_t lane = 0; lane < baseline_.run.lanes.size(); ++lane) {
      const int at = lane_here_[lane];
      if (at < 0) continue;
      const std::vector<std::string>& before = baseline_.step_bits[lane];
      const std::vector<std::string>& now = summary_.lanes[static_cast<size_t>(at)].step_bits;
      for (size_t step = 0; step < std::max(before.size(), now.size()); ++step) {
        if (step < before.size() && step < now.size() && before[step] == now[step]) continue;
        const auto first = static_cast<int64_t>(step);
        first_other_bits_[facts_.lanes[static_cast<size_t>(at)].name] = first;
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
    if (std::ranges::all_of(lane_here_, [](int lane) { return lane < 0; })) {
      result_.why_inconclusive.push_back("no lane of the run has a counterpart in the baseline");
    }
    const RunOptions& before = baseline_.run.options;
    // Its numbers, right as they may be, say nothing of the baseline's.
    for (const SetupDifference& d :
         setup_differences(run_.options(), before, OptionEffect::kReplay)) {
      result_.why_inconclusive.push_back(difference_text(d));
    }
    for (const SetupDifference& d :
         setup_differences(run_.options(), before, OptionEffect::kRepeat)) {
      result_.remarks.push_back(difference_text(d));
    }
    const std::string others = other_measured_steps(run_.options(), before);
    if (!others.empty()) result_.why_inconclusive.push_back(others);
    if (run_.steps() < baseline_.run.steps) {
      const int64_t last = baseline_.run.steps - 1;
      result_.missing.push_back(
          fmt::format("{}: the run has {}, the baseline {}",
                      run_.steps() == last ? fmt::format("step {}", last)
                                           : fmt::format("steps {} to {}", run_.steps(), last),
                      counted(static_cast<uint64_t>(run_.steps()), "step"), baseline_.run.steps));
    } else if (run_.steps() > baseline_.run.steps) {
      result_.why_inconclusive.push_back(
          fmt::format("the run has {} steps, the baseline {}: means over other steps cannot be "
                      "compared",
                      run_.steps(), baseline_.run.steps));
    }
    return result_.why_inconclusive.empty();
  }

  // Are weights and batches the recorded ones, but for an ulp?
  void choose_draw() {
    result_.draw = Draw::kSame;
    // Other weights took other random numbers, so that the masks after them differ, too.
    const auto other = [&](std::string why, bool from_weights = false) {
      if (result_.draw == Draw::kSame ||
          (from_weights && !has_other_weights_ && !has_other_seed())) {
        why_other_ = std::move(why);
        has_other_weights_ = from_weights;
      }
      result_.draw = Draw::kOther;
    };
    if (!has_same_draws()) other(other_draws_text());
    if (facts_.batches_hash.empty() && facts_.options.seed != baseline_.run.options.seed) {
      other(fmt::format("the run has seed {}, the baseline seed {}", facts_.options.seed,
                        baseline_.run.options.seed));
    }
    if (facts_.batches_hash.empty() && facts_.data != baseline_.run.data) {
      other(
          fmt::format("the run has the data {}, the baseline {}", facts_.data, baseline_.run.data));
    }
    const Ensemble& ulps = baseline_.ensemble(Draw::kSame);
    const size_t lane = reference_lane();
    if (ulps.lanes.empty() || lane == baseline_.run.lanes.size()) return;
    join_parameters(ulps.lanes[lane], summary_.lanes[static_cast<size_t>(lane_here_[lane])]);
    if (is_replaced()) {
      other("parameters of the baseline have no counterpart with their values",
            /*from_weights=*/true);
    }
    const LaneSummary& now = summary_.lanes[static_cast<size_t>(lane_here_[lane])];
    for (size_t s = 0; s < match_.sites.size(); ++s) {
      const SiteFacts& site = baseline_.run.sites[s];
      if (match_.sites.after_of(s) < 0 || !is_stored_weight(site)) continue;
      const Band* before = ulps.lanes[lane].find(MetricId::kFirstMagnitude, s);
      const Measured* after =
          now.find(MetricId::kFirstMagnitude, static_cast<size_t>(match_.sites.after_of(s)));
      if (before == nullptr || after == nullptr) continue;
      if (std::fabs(before->centre - after->value) < kSameDrawOctaves) continue;
      const auto at = static_cast<size_t>(match_.sites.after_of(s));
      const std::string line = script_.line_of_node(run_.sites().sites[at].node);
      other(fmt::format("the weights of {}{} differ at the start", site.layer,
                        line.empty() ? "" : " (" + line + ")"),
            /*from_weights=*/true);
    }
  }

  // batches_hash takes masks in the order of their nodes' names and the inputs that a graph reads,
  // which other code changes: labels that are read through an index are no input any more.
  bool has_same_draws() const {
    return facts_.batches_hash == baseline_.run.batches_hash ||
           have_same_draws(baseline_.run.lines, facts_.lines);
  }
  std::string other_draws_text() const {
    if (!has_other_seed()) return "the batches or masks are not the baseline's";
    const std::string line = script_.line_of(kSeedLine);
    return fmt::format("the script has seed {}{}, the baseline's {}",
                       script_value(facts_, kSeedLine), line.empty() ? "" : " (" + line + ")",
                       script_value(baseline_.run, kSeedLine));
  }
  // Of captures that say so.
  bool has_other_seed() const {
    const std::string before = script_value(baseline_.run, kSeedLine);
    const std::string now = script_value(facts_, kSeedLine);
    return !before.empty() && !now.empty() && before != now;
  }

  // Fused or split parameters are one, if the values say so.
  void join_parameters(const LaneBands& before, const LaneSummary& now) {
    std::vector<double> octaves_before, octaves_now;
    constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();
    for (size_t p = 0; p < baseline_.run.parameters.size(); ++p) {
      const int site = stored_site(baseline_.run, p);
      const Band* band =
          site < 0 ? nullptr : before.find(MetricId::kFirstMagnitude, static_cast<size_t>(site));
      octaves_before.push_back(band == nullptr ? kUnknown : band->centre);
    }
    for (size_t p = 0; p < facts_.parameters.size(); ++p) {
      const int site = stored_site(facts_, p);
      const Measured* found =
          site < 0 ? nullptr : now.find(MetricId::kFirstMagnitude, static_cast<size_t>(site));
      octaves_now.push_back(found == nullptr ? kUnknown : found->value);
    }
    joined_ = joined_parameters(baseline_.run, facts_, match_.parameters, octaves_before,
                                octaves_now, kSameDrawOctaves);
    const auto names = [](const RunFacts& run, const std::vector<size_t>& parameters) {
      std::vector<std::string> all;
      for (const size_t p : parameters) all.push_back(run.parameters[p].name);
      return join(all, " and ");
    };
    for (const JoinedParameter& one : joined_) {
      result_.changes.push_back(fmt::format(
          "parameter {} is {} here", names(baseline_.run, one.before), names(facts_, one.after)));
      for (const size_t p : one.before) {
        std::erase(result_.missing, no_parameter_text("run", baseline_.run.parameters[p]));
      }
      for (const size_t p : one.after) {
        std::erase(result_.missing, no_parameter_text("baseline", facts_.parameters[p]));
      }
    }
  }
  // Both sides have parameters that the other lacks.
  bool is_replaced() const {
    size_t ours = match_.parameters.free_before().size(),
           theirs = match_.parameters.free_after().size();
    for (const JoinedParameter& one : joined_) {
      ours -= one.before.size();
      theirs -= one.after.size();
    }
    return ours > 0 && theirs > 0;
  }

  // The first gradients of joined parameters, together.
  void judge_joined(const Ensemble& ensemble) {
    const Metric& metric = metric_row(MetricId::kFirstGradient);
    for (size_t lane = 0; lane < ensemble.lanes.size(); ++lane) {
      if (lane_here_[lane] < 0) continue;
      const LaneSummary& now = summary_.lanes[static_cast<size_t>(lane_here_[lane])];
      for (const JoinedParameter& one : joined_) {
        Band band{.centre = 0, .spread = 0, .always = true};
        double square_sum = 0;
        for (const size_t p : one.before) {
          const Band* found = ensemble.lanes[lane].find(metric.id, p);
          if (found == nullptr) continue;
          band.centre += std::exp2(2 * found->centre);
          band.spread = std::max(band.spread, found->spread);
        }
        for (const size_t p : one.after) {
          const Measured* found = now.find(metric.id, p);
          if (found != nullptr) square_sum += std::exp2(2 * found->value);
        }
        if (band.centre == 0) continue;  // a lane without this metric
        band.centre = std::log2(band.centre) / 2;
        ++result_.judged;
        judge_number(lane, metric, one.before.front(), band, {std::log2(square_sum) / 2});
      }
    }
  }

  bool captured() const { return !facts_.batches_hash.empty(); }

  size_t reference_lane() const {
    for (size_t lane = 0; lane < baseline_.run.lanes.size(); ++lane) {
      const int at = lane_here_[lane];
      if (at >= 0 && summary_.lanes[static_cast<size_t>(at)].is_reference) return lane;
    }
    return baseline_.run.lanes.size();
  }

  void few_runs(const Ensemble& ensemble) {
    const std::string few = few_runs_text(result_.draw, ensemble.runs);
    if (few.empty()) return;
    result_.remarks.push_back(
        fmt::format("{} (`lockstep baseline record ... {} 12`)", few,
                    result_.draw == Draw::kSame ? "--members" : option_name(&RunOptions::seeds)));
  }

  void lacks_ensemble() {
    if (result_.draw == Draw::kSame) {
      result_.why_inconclusive.push_back(fmt::format(
          "the baseline has {} from weights moved by one ulp, but limits need at least {}: "
          "`lockstep baseline record ... --members N`",
          counted(static_cast<uint64_t>(result_.runs), "run"), kFewestRuns));
      return;
    }
    // Each is an alarm by itself, but not of another model.
    const bool is_same_model = match_.parameters.free_before().empty();
    if ((is_same_model && !lines_.settings.empty()) ||
        std::ranges::any_of(lines_.settings, &SettingChange::changes_draw)) {
      changed_settings();
      return;
    }
    const std::string_view limits = captured()
                                        ? "`lockstep baseline record ... --other-captures A,B,...`"
                                        : "`lockstep baseline record ... --seeds N`";
    if (has_other_weights_ && captured()) {
      result_.why_inconclusive.push_back(fmt::format(
          "{}: the script draws others than the baseline's. Start from the old ones: "
          "`torch.save(model.state_dict(), \"start.pt\")` before the capture in the old script, "
          "`model.load_state_dict(torch.load(\"start.pt\"))` in the new, then `torch.manual_seed` "
          "in both; or record limits for other weights ({})",
          why_other_, limits));
      return;
    }
    result_.why_inconclusive.push_back(
        fmt::format("{}, but the baseline has no limits for other seeds: {}", why_other_, limits));
  }

  // Index in the run, -1: no counterpart.
  int counterpart(const Metric& metric, size_t subject) const {
    switch (metric.of) {
      case MetricOf::kSite:
        return is_parted(subject) ? -1 : match_.sites.after_of(subject);
      case MetricOf::kParameter:
        return match_.parameters.after_of(subject);
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
      if (lane_here_[lane] < 0) continue;
      const LaneSummary& now = summary_.lanes[static_cast<size_t>(lane_here_[lane])];
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
    return metric.first_step || run_.steps() == baseline_.run.steps;
  }
  template <typename Visit>
  void each_exponent(const LaneBands& before, const LaneSummary& now, size_t lane, Visit visit) {
    if (!is_judgeable(metric_row(MetricId::kExponents))) return;
    for (size_t s = 0; s < before.exponents.size(); ++s) {
      const int at = is_parted(s) ? -1 : match_.sites.after_of(s);
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

  // A doubtful pair is none unless FP32's values agree; with other seeds they cannot.
  void part_doubtful_pairs(const Ensemble& ensemble) {
    if (!places_.has_changed_code || result_.first_other_bits < 0) return;
    const size_t lane = reference_lane();
    const double factor = limit_factor(ensemble.runs, options_.alpha, match_.sites.size());
    for (size_t s = 0; s < match_.sites.size(); ++s) {
      if (!places_.doubtful[s]) continue;
      const auto at = static_cast<size_t>(match_.sites.after_of(s));
      if (result_.draw == Draw::kSame && first_values_agree(ensemble, lane, s, at, factor)) {
        continue;
      }
      parted_.insert(s);
      --result_.sites_matched;
    }
  }
  bool first_values_agree(const Ensemble& ensemble, size_t lane, size_t before_site,
                          size_t after_site, double factor) const {
    if (lane >= ensemble.lanes.size()) return false;
    const Band* before = ensemble.lanes[lane].find(MetricId::kFirstMagnitude, before_site);
    const Measured* after = summary_.lanes[static_cast<size_t>(lane_here_[lane])].find(
        MetricId::kFirstMagnitude, after_site);
    const double floor = metric_row(MetricId::kFirstMagnitude).floor;
    return before != nullptr && after != nullptr &&
           std::fabs(before->centre - after->value) <= std::max(floor, factor * before->spread);
  }
  // Operands that have changed places: `b + a` for `a + b`. Of an op for which the order matters,
  // all that follows is still judged.
  void part_commuted_operands(const Ensemble& ensemble) {
    if (result_.draw != Draw::kSame || result_.first_other_bits < 0) return;
    const size_t lane = reference_lane();
    const double factor = limit_factor(ensemble.runs, options_.alpha, match_.sites.size());
    const std::vector<SiteFacts>& sites = baseline_.run.sites;
    for (size_t s = 0; s + 1 < sites.size(); ++s) {
      const SiteFacts &one = sites[s], &two = sites[s + 1];
      if (one.point != "operand" || two.point != "operand" || one.op != two.op) continue;
      if (one.layer != two.layer) continue;
      const int first = match_.sites.after_of(s), second = match_.sites.after_of(s + 1);
      if (first < 0 || second < 0) continue;
      const auto agree = [&](size_t before, int after) {
        return first_values_agree(ensemble, lane, before, static_cast<size_t>(after), factor);
      };
      if (agree(s, first) || !agree(s, second) || !agree(s + 1, first)) continue;
      for (const size_t pair : {s, s + 1}) {
        if (parted_.insert(pair).second) --result_.sites_matched;
      }
    }
  }
  bool is_parted(size_t site) const { return parted_.contains(site); }

  // Inside of rewritten code the same mathematics takes another way: other partial sums, other
  // roundings. What both programs share decides (shared_places.h); if it agrees, the rest is no
  // regression, and a change that is named.
  void set_aside_changed_code() {
    if (!places_.has_changed_code || result_.draw != Draw::kSame) return;
    std::erase_if(result_.improvements, [this](const Alarm& alarm) { return is_inner(alarm); });
    // Whether a changed setting matters, the numbers decide.
    std::vector<Alarm> alarms = result_.alarms;
    std::erase_if(alarms, [](const Alarm& alarm) { return alarm.finding == kSetting; });
    if (alarms.empty() || !std::ranges::all_of(alarms, [this](const Alarm& alarm) {
          return is_inner(alarm) || is_of_new_rounding(alarm);
        })) {
      return;
    }
    result_.alarms = std::move(alarms);
    sort_alarms();
    const auto boundary =
        std::stable_partition(result_.alarms.begin(), result_.alarms.end(),
                              [this](const Alarm& alarm) { return is_inner(alarm); });
    const std::span<const Alarm> inner(result_.alarms.begin(), boundary),
        rounded(boundary, result_.alarms.end());
    if (!inner.empty()) {
      result_.changes.push_back(fmt::format(
          "{} inside of the changed code beyond their limits, the first: {}. The losses, "
          "gradients, updates and unchanged layers of all lanes are within theirs, so that this is "
          "no regression",
          counted(inner.size(), "number"), alarm_sentence(inner.front())));
    }
    if (!rounded.empty()) {
      result_.changes.push_back(fmt::format(
          "the changed code rounds otherwise: {} of narrow lanes beyond the limits of unchanged "
          "code, at most {:.1f} times as far (a rewrite may go {:g} times), the first: {}. FP32's "
          "losses and gradients agree, so that this is no regression",
          counted(rounded.size(), "number"), std::ranges::max(rounded, {}, &Alarm::times).times,
          kRewriteTimes, alarm_sentence(rounded.front())));
    }
    result_.alarms.clear();
  }
  // A loss or gradient of a lane that rounds. FP32's are the same, or there would be an alarm that
  // nothing sets aside.
  bool is_of_new_rounding(const Alarm& alarm) const {
    if (!alarm.finding.empty() || lines_.changes_casts || is_reference(alarm.lane)) return false;
    switch (alarm.metric) {
      case MetricId::kSumError:
        return alarm.times <= kRewriteSumTimes;
      case MetricId::kFirstLoss:
      case MetricId::kEndLoss:
      case MetricId::kLossGap:
      case MetricId::kHeldOutLoss:
      case MetricId::kFirstGradient:
      case MetricId::kGradient:
        return alarm.times <= kRewriteTimes;
      default:
        return false;
    }
  }
  bool is_reference(const std::string& lane) const {
    return std::ranges::any_of(summary_.lanes, [&](const LaneSummary& one) {
      return one.is_reference && one.name == lane && one.name != kCapturedLane;
    });
  }
  // Free lanes drift apart after another rounding (Adam turns the sign of a gradient near zero into
  // a whole step), and values that cancel take other exponents: both show how the rounding went.
  // Whether it matters is for sizes and losses.
  static bool is_of_roundings(MetricId metric) {
    return metric == MetricId::kError || metric == MetricId::kExponents;
  }
  // Values that break are never inner.
  bool is_inner(const Alarm& alarm) const {
    if (alarm.site < 0 || alarm.finding == kOtherInputs || alarm.finding == kSetting) return false;
    if (alarm.finding.empty() && alarm.metric == MetricId::kNonfinite) return false;
    const auto row = std::ranges::find(finding_kinds(), alarm.finding, &FindingKindRow::name);
    const bool breaks = row != finding_kinds().end() && row->breaks;
    const auto at = static_cast<size_t>(alarm.site);
    if (alarm.finding.empty() && is_of_roundings(alarm.metric)) return true;
    const int before = match_.sites.before_of(at);
    return !breaks && (before < 0 || !places_.certain[static_cast<size_t>(before)]);
  }

  void judge_lanes(const Ensemble& ensemble) {
    count_families(ensemble);
    basis_ = {.factor = limit_factor(ensemble.runs, options_.alpha, result_.judged),
              .draw = result_.draw,
              .ensemble = ensemble_text(),
              .rules_path = options_.rules.path};
    const MetricKeys keys(baseline_);
    std::set<std::string> missing;
    each_number(ensemble, [&](size_t lane, const Metric& metric, size_t subject, const Band& band,
                              const Measured& now) {
      if (now.is_there()) {
        judge_number(lane, metric, subject, band, now);
      } else if (band.always && metric.id == MetricId::kFirstGradient) {
        no_gradient(lane, metric, subject);
      } else if (band.always && !is_in_changed_code(metric, subject) &&
                 missing.size() < kLocatedAlarms) {
        missing.insert(keys.of(lane, metric.id, subject) + ": not measured here");
      }
    });
    result_.missing.insert(result_.missing.end(), missing.begin(), missing.end());
    judge_joined(ensemble);
    other_inputs();
    new_nonfinite(ensemble);
    new_findings();
    changed_settings();
  }

  // A site that was matched there may be one that measures less: an operand that no cast feeds.
  bool is_in_changed_code(const Metric& metric, size_t subject) const {
    return places_.has_changed_code && metric.of == MetricOf::kSite && !places_.certain[subject];
  }

  // With the recorded weights and batches the numbers show whether a changed setting matters; it is
  // then named first. Other seeds hide its effect, so that the change alone is an alarm.
  void changed_settings() {
    if (result_.draw == Draw::kSame && result_.alarms.empty()) return;
    for (const SettingChange& change : lines_.settings) {
      Alarm alarm;
      alarm.lane = facts_.lanes[0].name;
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
      const auto at = static_cast<size_t>(lane_here_[lane]);
      result_.families.push_back({facts_.lanes[at].name, metric, count});
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
    const auto at = static_cast<size_t>(lane_in_run_[static_cast<size_t>(lane_here_[lane])]);
    const std::vector<std::string>& formats = run_.lanes()[at].site_formats;
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
    alarm.lane = facts_.lanes[static_cast<size_t>(lane_here_[lane])].name;
    const int at = counterpart(metric, subject);
    if (metric.of == MetricOf::kSite) {
      const SiteFacts& site = facts_.sites[static_cast<size_t>(at)];
      alarm.site = at;
      alarm.layer = site.layer;
      alarm.op = site.op;
      alarm.role = site.role;
      alarm.point = site.point;
      alarm.source_line =
          is_input(site) ? line_of_input(site)
          : site.source_line.empty()
              ? script_.line_of_node(run_.sites().sites[static_cast<size_t>(at)].node)
              : site.source_line;
    } else if (metric.id == MetricId::kLossScale || metric.id == MetricId::kSkipped) {
      alarm.source_line = script_.line_of(kScalerLine);
    } else if (metric.of != MetricOf::kLane) {
      if (metric.of == MetricOf::kGroup) {
        alarm.source_line = script_.line_of("optimizer lr");
      } else if (at >= 0) {
        alarm.source_line = script_.line_of_tensor(facts_.parameters[static_cast<size_t>(at)].name);
      }
      alarm.parameter = at < 0 ? subject_text(baseline_.run, metric, subject)
                               : subject_text(facts_, metric, static_cast<size_t>(at));
    }
  }

  void no_gradient(size_t lane, const Metric& metric, size_t subject) {
    Alarm alarm{.metric = metric.id};
    place(alarm, lane, metric, subject);
    const int at = counterpart(metric, subject);
    if (at >= 0) {
      const std::string& name = facts_.parameters[static_cast<size_t>(at)].name;
      alarm.source_line = script_.line_of_frozen(name);
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
    const std::string made = script_.changed_line_of(kBatchesLine);
    return made.empty() ? site.source_line : made;
  }

  // A batch of another shape is another training.
  void other_inputs() {
    for (size_t s = 0; s < match_.sites.size(); ++s) {
      const SiteFacts& before = baseline_.run.sites[s];
      if (match_.sites.after_of(s) < 0 || !is_input(before)) continue;
      const SiteFacts& after = facts_.sites[static_cast<size_t>(match_.sites.after_of(s))];
      if (before.shape == after.shape) continue;
      Alarm alarm;
      alarm.lane = facts_.lanes[0].name;
      alarm.site = match_.sites.after_of(s);
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

  // The farthest site upstream that the baseline does not have, -1: none. Its op was put there or
  // replaced.
  int32_t origin_of(int32_t site) const {
    const std::vector<Site>& sites = run_.sites().sites;
    std::vector<int32_t> next = {site};
    std::vector<bool> seen(sites.size(), false);
    int32_t origin = -1;
    for (size_t i = 0; i < next.size(); ++i) {
      for (const int32_t feed : sites[static_cast<size_t>(next[i])].feeds) {
        const auto at = static_cast<size_t>(feed);
        if (seen[at] || match_.sites.before_of(at) >= 0) continue;
        seen[at] = true;
        next.push_back(feed);
        origin = feed;
      }
    }
    return origin;
  }

  // An op of the baseline that is missing just before the place: "blocks.0 add".
  std::string gone_before(int32_t site) const {
    const int at = match_.sites.before_of(static_cast<size_t>(site));
    if (at < 0) return "";
    const SiteFacts& here = baseline_.run.sites[static_cast<size_t>(at)];
    for (auto s = static_cast<size_t>(at); s-- > 0;) {
      const SiteFacts& before = baseline_.run.sites[s];
      if (before.point != "output" && before.point != "operand") continue;
      if (match_.sites.after_of(s) < 0) return before.layer + " " + before.op;
      if (before.layer != here.layer || before.op != here.op) break;
    }
    return "";
  }

  void new_findings() {
    for (size_t lane = 0; lane < lane_here_.size(); ++lane) {
      if (lane_here_[lane] < 0) continue;
      const LaneSummary& now = summary_.lanes[static_cast<size_t>(lane_here_[lane])];
      for (const std::string& kind : now.findings) {
        if (std::ranges::count(baseline_.findings[lane], kind) > 0) continue;
        Alarm alarm;
        alarm.lane = now.name;
        alarm.finding = kind;
        alarm.times = std::numeric_limits<double>::infinity();
        alarm.limit_from = ensemble_text() + ", none of which has such a finding";
        describe_finding(run_, lane_in_run_[static_cast<size_t>(lane_here_[lane])], kind, alarm);
        result_.alarms.push_back(std::move(alarm));
      }
    }
  }

  // The origin first: what the first step shows, in the order of execution (the reference before
  // the lanes that follow it); then what cannot be in any run; then by how far it lies out.
  void sort_alarms() {
    const auto rank = [](const Alarm& alarm) {
      if (alarm.finding == kSetting) return alarm.layer.empty() ? -3 : -4;
      if (alarm.finding == kOtherInputs) return -2;
      if (alarm.finding.empty() && alarm.metric == MetricId::kLearningRate) return -2;
      if (alarm.finding == kNoGradient) return -1;
      const bool first = alarm.finding.empty() && metric_row(alarm.metric).first_step;
      return first && alarm.site >= 0 ? 0 : first ? 1 : 2;
    };
    std::ranges::stable_sort(result_.alarms, [&](const Alarm& a, const Alarm& b) {
      if (rank(a) != rank(b)) return rank(a) < rank(b);
      if (rank(a) == 0) return a.site < b.site;
      return a.times > b.times;
    });
    std::ranges::stable_sort(result_.improvements, std::greater<>(), &Alarm::times);
  }

  // The first step in which each site's number is beyond its limit.
  void find_first_steps() {
    std::map<std::string, std::vector<Alarm*>> by_lane;
    for (Alarm& alarm : result_.alarms) {
      const bool is_open = alarm.step < 0 && alarm.site >= 0 && alarm.finding.empty();
      if (is_open) by_lane[alarm.lane].push_back(&alarm);
    }
    for (auto& [name, alarms] : by_lane) {
      // The limit is that of a mean, so single steps of a good run lie beyond it, too.
      const auto other_bits = first_other_bits_.find(name);
      int64_t step = other_bits == first_other_bits_.end() ? 0 : other_bits->second;
      for (; step < result_.steps && !alarms.empty(); ++step) {
        std::vector<SiteMetric> asked;
        for (const Alarm* alarm : alarms) {
          asked.push_back({alarm->metric, static_cast<size_t>(alarm->site)});
        }
        const std::vector<double> now = metrics_at(run_, run_.lane_index(name), step, asked);
        size_t at = 0;
        std::erase_if(alarms, [&](Alarm* alarm) {
          const double x = now[at++];
          const bool is_beyond = alarm->value > alarm->limit ? x > alarm->limit : x < alarm->limit;
          if (is_beyond) alarm->step = step;
          return is_beyond;
        });
      }
    }
  }

  void locate() {
    for (size_t i = 0; i < std::min(kLocatedAlarms, result_.alarms.size()); ++i) {
      Alarm& alarm = result_.alarms[i];
      if (alarm.site >= 0 && (alarm.finding.empty() || i == 0)) {
        const int32_t origin = origin_of(alarm.site);
        if (origin >= 0) {
          const Site& from = run_.sites().sites[static_cast<size_t>(origin)];
          alarm.origin = place_text(from);
          const std::string made = script_.changed_line_of("module " + from.layer);
          alarm.origin_line = made.empty() ? from.source_line : made;
        } else {
          if (const std::string thing = script_.changed_thing_in(alarm.layer); !thing.empty()) {
            alarm.origin_line = script_.line_of(thing);
            alarm.origin = fmt::format("the code of {} ({})", thing, alarm.origin_line);
          }
          alarm.gone = gone_before(alarm.site);
        }
      }
    }
    find_first_steps();
    for (Alarm& alarm : result_.alarms) alarm.sentence = alarm_sentence(alarm);
    name_a_place();
    const auto is_captured = [](const Alarm& alarm) { return alarm.lane == kCapturedLane; };
    constexpr double kFarBeyond = 10;
    if (!result_.alarms.empty() && std::ranges::all_of(result_.alarms, is_captured) &&
        std::ranges::max(result_.alarms, {}, &Alarm::times).times > kFarBeyond) {
      Alarm& first = result_.alarms.front();
      if (first.source_line.empty()) first.source_line = script_.line_of("optimizer step");
      first.sentence += fmt::format(
          "; no replayed lane shows it, so the loop does something else outside of the forward and "
          "backward passes: optimizer, clipping, scaler{}",
          first.source_line.empty() ? "" : " (" + first.source_line + ")");
    }
    for (Alarm& alarm : result_.improvements) alarm.sentence = alarm_sentence(alarm);
  }

  // Where a number of the whole lane leads: the first of the lane's places beyond their limits.
  void name_a_place() {
    if (result_.alarms.empty()) return;
    Alarm& lane = result_.alarms.front();
    if (!lane.finding.empty() || metric_row(lane.metric).of != MetricOf::kLane) return;
    const Alarm* first = nullptr;
    for (const Alarm& alarm : result_.alarms) {
      if (alarm.lane != lane.lane || alarm.site < 0 || alarm.step < 0) continue;
      const auto when = [](const Alarm& a) { return std::pair(a.step, a.site); };
      if (first == nullptr || when(alarm) < when(*first)) first = &alarm;
    }
    if (first == nullptr) return;
    lane.sentence += fmt::format("; the first place beyond its limit is {} ({}, step {})",
                                 alarm_place(*first), alarm_subject(*first), first->step);
  }

  void decide() {
    const bool nothing_judged = result_.judged == 0;
    const bool has_ignored =
        std::ranges::any_of(result_.ignored, [](const Ignored& rule) { return rule.alarms > 0; });
    if (!result_.alarms.empty()) {
      result_.verdict = CheckVerdict::kRegression;
    } else if (result_.first_other_bits < 0 && result_.missing.empty() && lines_.changes.empty() &&
               result_.why_inconclusive.empty()) {
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

  const RunFile& run_;
  const Baseline& baseline_;
  const CheckOptions& options_;
  RuleUse rules_;
  const RunSummary summary_;
  const RunFacts facts_;  // without twins
  const RunMatch match_;  // before: the baseline
  const ChangeLines lines_;
  const SharedPlaces places_;
  const ScriptPlaces script_;
  std::vector<JoinedParameter> joined_;
  std::vector<int> lane_here_;  // by lane of the baseline: the lane in `facts_`, -1: none
  std::vector<int> lane_in_run_;
  std::set<size_t> parted_;  // doubtful pairs whose values differ, by site of the baseline
  std::map<std::string, int64_t> first_other_bits_;  // by lane of the run
  std::string why_other_;
  bool has_other_weights_ = false;  // and the baseline's batches
  LimitBasis basis_;
  CheckResult result_;
};

}  // namespace

CheckResult judge_run(const RunFile& run, const Baseline& baseline, const CheckOptions& options) {
  return Judge(run, baseline, options).judge();
}

}  // namespace lockstep
