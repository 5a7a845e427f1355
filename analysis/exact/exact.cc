// The comparison itself: step by step, lane by lane, rule by rule.
#include "analysis/exact/exact.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <tuple>

#include "analysis/exact/exact_rules.h"
#include "analysis/exact/same_setup.h"
#include "analysis/findings/finding_kinds.h"
#include "analysis/findings/findings.h"
#include "src/graph/json.h"
#include "src/graph/site_labels.h"

namespace lockstep {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr size_t kAfterAllSites = std::numeric_limits<size_t>::max();

// Where in the run a difference is; "first" refers to this order.
using Place = std::tuple<int64_t, size_t, size_t, size_t>;  // step, lane, site, rule

bool is_of_step(Scope scope) {
  return scope != Scope::kEvaluation && scope != Scope::kLane;
}

class Comparer {
 public:
  // `run`: its sites and parameters name the differences; the baseline has the same.
  Comparer(const ExactOptions& options, const RunFile& run, ExactResult& result)
      : options_(options),
        labels_(unique_labels(run.sites())),
        parameters_(graph_from_json(run.graph_json()).parameters),
        result_(result) {}

  void compare_rule(const ExactRule& rule, size_t rule_index, const LaneView& run,
                    const LaneView& base, size_t lane_index, const std::string& lane) {
    const Numbers a = rule.read(run), b = rule.read(base);
    const std::vector<double> magnitude =
        rule.magnitude ? rule.magnitude(base) : std::vector<double>();
    const size_t size = std::max(a.size(), b.size());
    // A separate rule compares which steps have a record.
    if (rule.scope == Scope::kRecord && std::min(a.size(), b.size()) == 0) return;
    for (size_t i = 0; i < size; ++i) {
      const bool by_site = rule.scope == Scope::kSite;
      if (by_site && !run.has_number(rule.at, i) && !base.has_number(rule.at, i)) continue;
      const double apart = difference(a, b, i, magnitude);
      ++result_.values;
      DifferenceGroup& group = groups_[{lane_index, rule_index}];
      ++group.compared;
      if (apart <= tolerance(rule)) continue;
      const bool by_step = is_of_step(rule.scope);
      Difference d{.step = by_step ? run.step() : -1,
                   .lane = lane,
                   .rule = rule.name,
                   .subject = subject(rule.scope, i),
                   .run = printed(a, i),
                   .baseline = printed(b, i),
                   .relative = apart};
      add(group, d);
      const Place place{by_step ? run.step() : std::numeric_limits<int64_t>::max(), lane_index,
                        by_site ? i : kAfterAllSites, rule_index};
      if (!first_place_ || place < *first_place_) {
        first_place_ = place;
        result_.has_first = true;
        result_.first = std::move(d);
        result_.first_place.reset();
        if (by_site) {
          result_.first_place = SitePlace{run.step(), run.lane_name(), static_cast<int32_t>(i)};
          result_.first_baseline_lane = base.lane_name();
        }
      }
    }
  }

  void finish() {
    for (auto& [key, group] : groups_) {
      if (group.count > 0) result_.groups.push_back(group);
    }
    std::stable_sort(result_.groups.begin(), result_.groups.end(),
                     [](const DifferenceGroup& x, const DifferenceGroup& y) {
                       return x.worst.relative > y.worst.relative;
                     });
  }

 private:
  std::string subject(Scope scope, size_t i) const {
    if (scope == Scope::kSite) return "site " + labels_[i];
    if (scope == Scope::kRecord) return "site " + labels_.at(i / kHistogramBins);
    if (scope != Scope::kParameter) return "";
    // A file may hold more of them than its graph.
    return "parameter " + (i < parameters_.size() ? parameters_[i].name : fmt::format("{}", i));
  }

  double tolerance(const ExactRule& rule) const {
    return rule.comparison == Compared::kTolerance && !options_.strict ? options_.rel_tol : 0;
  }

  // Infinity where one side has no such value.
  double difference(const Numbers& a, const Numbers& b, size_t i,
                    const std::vector<double>& magnitude) {
    if (i >= a.size() || i >= b.size()) return kInfinity;
    if (!a.integers.empty()) {
      const uint64_t x = a.integers[i], y = b.integers[i];
      if (x == y) return 0;
      return static_cast<double>(x > y ? x - y : y - x) / static_cast<double>(std::max(x, y));
    }
    const double x = a.reals[i], y = b.reals[i];
    if (!std::isfinite(x) && !std::isfinite(y) && relative_difference(x, y, 0) == 0) {
      ++result_.nonfinite_on_both;
      return 0;
    }
    return relative_difference(x, y, i < magnitude.size() ? magnitude[i] : 0);
  }

  static std::string printed(const Numbers& c, size_t i) {
    if (i < c.integers.size()) return fmt::format("{}", c.integers[i]);
    if (i < c.reals.size()) return fmt::format("{:.17g}", c.reals[i]);
    return "missing";
  }

  static void add(DifferenceGroup& group, const Difference& d) {
    if (group.count == 0) {
      group.lane = d.lane;
      group.rule = d.rule;
      group.first = group.worst = d;
    } else if (d.relative > group.worst.relative) {
      group.worst = d;
    }
    ++group.count;
  }

  const ExactOptions& options_;
  const std::vector<std::string> labels_;  // by site
  const std::vector<Parameter> parameters_;
  ExactResult& result_;
  std::map<std::pair<size_t, size_t>, DifferenceGroup> groups_;  // lane, rule
  std::optional<Place> first_place_;
};

void add_new_findings(const RunFile& run, const RunFile& baseline, const LanePair& pair,
                      ExactResult& result) {
  const std::vector<ToldFinding> before = find_findings(baseline, pair.before);
  for (const auto& [finding, sentence] : find_findings(run, pair.after)) {
    const bool is_known = std::ranges::any_of(
        before, [&](const ToldFinding& old) { return is_same_finding(old.finding, finding); });
    if (is_known) continue;
    result.new_findings.push_back({run.lanes()[static_cast<size_t>(pair.after)].name, sentence});
  }
}

}  // namespace

double relative_difference(double run, double baseline, double magnitude) {
  if (std::isnan(run) && std::isnan(baseline)) return 0;
  if (run == baseline) return 0;
  if (!std::isfinite(run) || !std::isfinite(baseline)) return kInfinity;
  double size = std::max(std::fabs(run), std::fabs(baseline));
  if (std::isfinite(magnitude)) size = std::max(size, magnitude);
  return std::fabs(run - baseline) / size;
}

ExactResult compare_exactly(const RunFile& run, const RunFile& baseline,
                            const ExactOptions& options) {
  ExactResult result;
  ComparableLanes paired = comparable_lanes(run, baseline);
  const std::vector<LanePair>& pairs = paired.lanes;
  result.not_comparable = std::move(paired.not_comparable);
  result.missing = std::move(paired.missing);
  result.remarks = std::move(paired.remarks);
  if (run.seeds().size() > 1 || baseline.seeds().size() > 1) {
    result.remarks.emplace_back("only the first seed of each file is compared");
  }
  result.steps = pairs.empty() ? 0 : std::min(run.steps(), baseline.steps());
  Comparer comparer(options, run, result);
  const std::span<const ExactRule> rules = exact_rules();
  for (size_t p = 0; p < pairs.size(); ++p) {
    LaneView ours(run, pairs[p].after), theirs(baseline, pairs[p].before);
    result.lanes.push_back(ours.lane_name());
    for (int64_t step = 0; step < result.steps; ++step) {
      ours.load_step(step);
      theirs.load_step(step);
      for (size_t r = 0; r < rules.size(); ++r) {
        if (!is_of_step(rules[r].scope)) continue;
        comparer.compare_rule(rules[r], r, ours, theirs, p, ours.lane_name());
      }
    }
    if (run.steps() != baseline.steps()) continue;  // whole-run sums would differ anyway
    for (size_t r = 0; r < rules.size(); ++r) {
      if (is_of_step(rules[r].scope)) continue;
      comparer.compare_rule(rules[r], r, ours, theirs, p, ours.lane_name());
    }
  }
  comparer.finish();
  for (const LanePair& pair : pairs) {
    if (!result.groups.empty()) add_new_findings(run, baseline, pair, result);
  }
  if (!result.groups.empty()) {
    result.verdict = ExactVerdict::kRegression;
  } else if (!result.missing.empty() && result.values > 0) {
    result.verdict = ExactVerdict::kIncomplete;
  } else if (!result.not_comparable.empty() || result.values == 0) {
    result.verdict = ExactVerdict::kNothingComparable;
  }
  return result;
}

}  // namespace lockstep
