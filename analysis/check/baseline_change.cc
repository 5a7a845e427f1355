// See baseline_change.h.
#include "analysis/check/baseline_change.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "analysis/check/change_lines.h"
#include "analysis/check/limit_range.h"
#include "analysis/check/metric_keys.h"
#include "src/core/error.h"
#include "src/core/text.h"
#include "src/record/run/environment.h"

namespace lockstep {
namespace {

// The same sites, parameters and lanes, each at its place: numbers have the same keys.
bool have_same_keys(const RunFacts& a, const RunFacts& b, const RunMatch& match) {
  const auto same_name = [](const auto& x, const auto& y) { return x.name == y.name; };
  return match.same_places && std::ranges::equal(a.parameters, b.parameters, same_name) &&
         std::ranges::equal(a.lanes, b.lanes, same_name);
}

// visit(draw, lane, metric, subject, old band, new band); null where one of them lacks it.
template <typename Visit>
void each_band(const Baseline& before, const Baseline& after, Visit visit) {
  for (const Draw draw : {Draw::kSame, Draw::kOther}) {
    const Ensemble &a = before.ensemble(draw), &b = after.ensemble(draw);
    for (size_t lane = 0; lane < std::max(a.lanes.size(), b.lanes.size()); ++lane) {
      for (const Metric& metric : metrics()) {
        const auto id = static_cast<size_t>(metric.id);
        const size_t ours = lane < a.lanes.size() ? a.lanes[lane].bands[id].size() : 0;
        const size_t theirs = lane < b.lanes.size() ? b.lanes[lane].bands[id].size() : 0;
        for (size_t s = 0; s < std::max(ours, theirs); ++s) {
          const Band* old = s < ours ? a.lanes[lane].find(metric.id, s) : nullptr;
          const Band* now = s < theirs ? b.lanes[lane].find(metric.id, s) : nullptr;
          if (old != nullptr || now != nullptr) visit(draw, lane, metric, s, old, now);
        }
      }
    }
  }
}

}  // namespace

BaselineDiff compare_baselines(const Baseline& before, const Baseline& after, double alpha) {
  BaselineDiff diff;
  const RunMatch match = match_runs(before.run, after.run);
  diff.changes = change_lines(before.run, after.run, match).changes;
  diff.same_keys = have_same_keys(before.run, after.run, match);
  if (!diff.same_keys) return diff;
  each_band(before, after, [&](auto...) { ++diff.compared; });
  const auto basis_of = [&](Draw draw) {
    const Ensemble& ensemble = before.ensemble(draw);
    return LimitBasis{
        .factor = ensemble.is_usable() ? limit_factor(ensemble.runs, alpha, diff.compared) : 0,
        .draw = draw,
        .ensemble = {},
        .rules_path = {}};
  };
  const MetricKeys keys(before);
  const LimitBasis bases[] = {basis_of(Draw::kSame), basis_of(Draw::kOther)};
  each_band(before, after,
            [&](Draw draw, size_t lane, const Metric& metric, size_t subject, const Band* old,
                const Band* now) {
              KeyChange change{.key = keys.of(lane, metric.id, subject),
                               .metric = metric.id,
                               .draw = draw,
                               .before = old == nullptr ? std::nan("") : old->centre,
                               .after = now == nullptr ? std::nan("") : now->centre};
              if (old != nullptr && now != nullptr) {
                const Ensemble& ensemble = before.ensemble(draw);
                if (!ensemble.is_usable() || old->is_exact() || now->is_exact()) return;
                const LimitRange range =
                    limit_range(metric, *old, bases[static_cast<size_t>(draw)], nullptr);
                change.is_beyond = now->centre > range.high || now->centre < range.low;
                if (!change.is_beyond) return;
              }
              diff.keys.push_back(std::move(change));
            });
  return diff;
}

Baseline approve(const Baseline& before, const Baseline& proposed, std::string_view keys,
                 std::string reason, std::string version) {
  if (reason.find_first_not_of(" \t\n") == std::string::npos) {
    throw InputError("--reason: missing", "say why the new numbers are right");
  }
  const bool all = keys == "*";
  Baseline merged = all ? proposed : before;
  merged.path = before.path;
  merged.history = before.history;
  merged.proposed_for.clear();
  size_t taken = 0;
  if (!all) {
    const RunMatch match = match_runs(before.run, proposed.run);
    if (!have_same_keys(before.run, proposed.run, match)) {
      throw InputError(
          fmt::format("--keys {}: the proposal has other sites, parameters or lanes", keys),
          "accept it as a whole: --keys '*'");
    }
    const ChangeLines lines = change_lines(before.run, proposed.run, match);
    if (!lines.settings.empty()) {
      throw InputError(fmt::format("--keys {}: the proposal has other settings: {}", keys,
                                   lines.settings.front().text),
                       "accept it as a whole: --keys '*'");
    }
    const MetricKeys names(before);
    each_band(before, proposed,
              [&](Draw draw, size_t lane, const Metric& metric, size_t subject, const Band*,
                  const Band* now) {
                if (!glob_match(keys, names.of(lane, metric.id, subject))) return;
                ++taken;
                Ensemble& ensemble = merged.ensembles[static_cast<size_t>(draw)];
                if (lane >= ensemble.lanes.size()) return;
                std::vector<Band>& bands =
                    ensemble.lanes[lane].bands[static_cast<size_t>(metric.id)];
                if (subject >= bands.size()) bands.resize(subject + 1);
                bands[subject] = now == nullptr ? Band{} : *now;
                if (metric.id == MetricId::kExponents && now != nullptr) {
                  ensemble.lanes[lane].exponents[subject] =
                      proposed.ensemble(draw).lanes[lane].exponents[subject];
                }
              });
    if (taken == 0) {
      throw InputError(fmt::format("--keys {}: matches no key", keys),
                       "a glob over LANE/METRIC/PLACE, e.g. 'fp32/*' or '*/to_zero/*'");
    }
  }
  merged.history.push_back({.created_utc = utc_now(),
                            .lockstep_version = std::move(version),
                            .reason = std::move(reason),
                            .keys = std::string(keys)});
  return merged;
}

std::string why_reference_broke(const RunSummary& run) {
  for (const LaneSummary& lane : run.lanes) {
    if (!lane.is_reference) continue;
    const Measured* died = lane.find(MetricId::kDied, 0);
    const Measured* nonfinite = nullptr;
    const auto& shares = lane.values[static_cast<size_t>(MetricId::kNonfinite)];
    for (const Measured& share : shares) {
      if (share.is_there() && share.value > 0) nonfinite = &share;
    }
    if (died != nullptr && died->value > 0) return "lane " + lane.name + " stopped early";
    if (lane.find(MetricId::kEndLoss, 0) == nullptr || nonfinite != nullptr) {
      return "lane " + lane.name + " holds NaN or infinite values";
    }
  }
  return "";
}

std::vector<std::string> why_no_baseline(const Baseline& before, const RunSummary& run) {
  std::vector<std::string> reasons;
  for (const LaneSummary& lane : run.lanes) {
    const auto known = std::ranges::find(before.run.lanes, lane.name, &LaneFacts::name);
    const auto at = static_cast<size_t>(known - before.run.lanes.begin());
    const bool is_known = known != before.run.lanes.end();
    const auto had = [&](MetricId id, size_t subject) {
      const Ensemble& ensemble = before.ensemble(Draw::kSame);
      if (!is_known || at >= ensemble.lanes.size()) return false;
      const Band* band = ensemble.lanes[at].find(id, subject);
      return band != nullptr && band->centre > 0;
    };
    const Measured* died = lane.find(MetricId::kDied, 0);
    if (died != nullptr && died->value > 0 && !had(MetricId::kDied, 0)) {
      reasons.push_back(fmt::format("lane {} stopped before the end of the run", lane.name));
    }
    if (lane.find(MetricId::kEndLoss, 0) == nullptr) {
      reasons.push_back(fmt::format("lane {} has no finite loss", lane.name));
    }
    for (const std::string& kind : lane.findings) {
      if (is_known && std::ranges::count(before.findings[at], kind) > 0) continue;
      reasons.push_back(
          fmt::format("lane {} has a finding that the baseline lacks: {}", lane.name, kind));
    }
  }
  return reasons;
}

}  // namespace lockstep
