// Compares models, data, options, policies and environments of two run files.
#include "analysis/pair/check_setup.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "src/graph/json_text.h"

namespace lockstep {
namespace {

auto identity_of(const Site& s) {
  return std::tie(s.id, s.layer, s.op, s.role, s.point, s.shape, s.node, s.index, s.value, s.feeds,
                  s.scaled, s.stat_exempt);
}

// Empty: the same sites; else the first difference in words.
std::string site_difference(const SiteTable& run, const SiteTable& baseline) {
  const std::vector<Site>&ours = run.sites, &theirs = baseline.sites;
  if (ours.size() != theirs.size()) {
    return fmt::format("site table: {} sites here, {} in the baseline", ours.size(), theirs.size());
  }
  for (size_t i = 0; i < ours.size(); ++i) {
    if (identity_of(ours[i]) == identity_of(theirs[i])) continue;
    return fmt::format("site {}: '{}' here, '{}' in the baseline", i, ours[i].label(),
                       theirs[i].label());
  }
  return "";
}

// Examples of it; 0: none.
int64_t last_evaluation_size(const RunFile& run) {
  const std::vector<Evaluation> all = run.evaluations(kReferenceIndex);
  return all.empty() ? 0 : all.back().example_count;
}

void compare_setup(const RunFile& run, const RunFile& baseline, LanePairs& result) {
  for (const SetupDifference& d : setup_differences(run.options(), baseline.options())) {
    result.not_comparable.push_back(
        fmt::format("{}: '{}' here, '{}' in the baseline", d.name, d.run, d.baseline));
  }
  if (!same_json(run.graph_json(), baseline.graph_json())) {
    result.not_comparable.push_back("step graph: differs from the baseline's");
  } else {
    const std::string difference = site_difference(run.sites(), baseline.sites());
    if (!difference.empty()) result.not_comparable.push_back(difference);
  }
  if (run.options().data != baseline.options().data) {
    result.remarks.push_back(fmt::format("data: '{}' here, '{}' in the baseline",
                                         run.options().data, baseline.options().data));
  }
  const std::string others = other_measured_steps(run.options(), baseline.options());
  if (!others.empty()) result.not_comparable.push_back(others);
  const int64_t histograms = run.options().measuring.histogram_every;
  const int64_t earlier = baseline.options().measuring.histogram_every;
  if (histograms != earlier) {
    result.remarks.push_back(fmt::format(
        "histograms: every {} steps here, every {} in the baseline", histograms, earlier));
  }
  const int64_t examples = last_evaluation_size(run), before = last_evaluation_size(baseline);
  if (examples != before) {
    result.remarks.push_back(
        fmt::format("last evaluation: {} examples here, {} in the baseline", examples, before));
  }
  for (const auto& [key, value] : baseline.environment()) {
    const auto it = run.environment().find(key);
    if (it != run.environment().end() && it->second == value) continue;
    result.remarks.push_back(fmt::format("environment {}: '{}' here, '{}' in the baseline", key,
                                         it == run.environment().end() ? "nothing" : it->second,
                                         value));
  }
}

const LaneInfo* find_lane(const RunFile& run, const std::string& name) {
  for (const LaneInfo& lane : run.lanes()) {
    if (lane.name == name) return &lane;
  }
  return nullptr;
}

}  // namespace

LanePairs pair_lanes(const RunFile& run, const RunFile& baseline) {
  LanePairs result;
  compare_setup(run, baseline, result);
  if (!result.not_comparable.empty()) return result;
  for (const LaneInfo& theirs : baseline.lanes()) {
    const LaneInfo* ours = find_lane(run, theirs.name);
    if (ours == nullptr) {
      result.missing.push_back(
          fmt::format("lane {}: in the baseline, not in this run", theirs.name));
    } else if (ours->policy_text != theirs.policy_text) {
      result.not_comparable.push_back(fmt::format("lane {}: its policy differs", theirs.name));
    } else if (ours->engine != theirs.engine || ours->target != theirs.target) {
      result.not_comparable.push_back(
          fmt::format("lane {}: engine {}@{} here, {}@{} in the baseline", theirs.name,
                      ours->engine, ours->target, theirs.engine, theirs.target));
    } else {
      result.lanes.push_back({.name = theirs.name,
                              .run = run.lane_index(theirs.name),
                              .baseline = baseline.lane_index(theirs.name)});
    }
  }
  for (const LaneInfo& ours : run.lanes()) {
    if (find_lane(baseline, ours.name) == nullptr) {
      result.not_comparable.push_back(
          fmt::format("lane {}: in this run, not in the baseline", ours.name));
    }
  }
  if (run.steps() < baseline.steps()) {
    result.missing.push_back(
        fmt::format("steps: {} here, {} in the baseline", run.steps(), baseline.steps()));
  } else if (run.steps() > baseline.steps()) {
    result.not_comparable.push_back(
        fmt::format("steps from {} on: not in the baseline", baseline.steps()));
  }
  return result;
}

}  // namespace lockstep
