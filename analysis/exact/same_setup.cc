// See same_setup.h.
#include "analysis/exact/same_setup.h"

#include <fmt/format.h>

namespace lockstep {
namespace {

using Lines = std::vector<std::string>;

template <typename T>
std::string both(const T& run, const T& baseline) {
  return fmt::format("'{}' here, '{}' in the baseline", run, baseline);
}

// What makes the runs as a whole not comparable.
Lines differences(const RunFacts& run, const RunFacts& baseline, const RunMatch& match) {
  Lines lines;
  for (const SetupDifference& d : match.settings) {
    lines.push_back(difference_text(d));
  }
  const std::vector<Site>&ours = run.site_table.sites, &theirs = baseline.site_table.sites;
  if (!match.same_step_graph) {
    lines.emplace_back("step graph: differs from the baseline's");
  } else if (ours.size() != theirs.size()) {
    lines.push_back(
        fmt::format("site table: {} sites here, {} in the baseline", ours.size(), theirs.size()));
  } else if (const auto i = match.other_site) {
    lines.push_back(fmt::format("site {}: {}", *i, both(ours[*i].label(), theirs[*i].label())));
  }
  const std::string others = other_measured_steps(run.options, baseline.options);
  if (!others.empty()) lines.push_back(others);
  return lines;
}

// Examples of it; 0: none.
int64_t last_evaluation_size(const RunFile& run) {
  const std::vector<Evaluation> all = run.evaluations(kReferenceIndex);
  return all.empty() ? 0 : all.back().example_count;
}

Lines remarks(const RunFile& run, const RunFile& baseline, const RunMatch& match) {
  Lines lines;
  const RunOptions &ours = run.options(), &theirs = baseline.options();
  if (ours.data != theirs.data) lines.push_back("data: " + both(ours.data, theirs.data));
  if (ours.measuring.histogram_every != theirs.measuring.histogram_every) {
    lines.push_back(fmt::format("histograms: every {} steps here, every {} in the baseline",
                                ours.measuring.histogram_every, theirs.measuring.histogram_every));
  }
  const int64_t examples = last_evaluation_size(run), before = last_evaluation_size(baseline);
  if (examples != before) {
    lines.push_back(
        fmt::format("last evaluation: {} examples here, {} in the baseline", examples, before));
  }
  for (const EnvironmentDifference& d : match.environment) {
    if (d.before.empty()) continue;
    const std::string now = d.after.empty() ? "nothing" : d.after;
    lines.push_back(fmt::format("environment {}: {}", d.name, both(now, d.before)));
  }
  return lines;
}

// A lane is compared with the lane of its own name only.
void compare_lanes(const RunFacts& run, const RunFacts& baseline, const RunMatch& match,
                   ComparableLanes& out) {
  for (const LanePair& pair : match.lanes) {
    const bool is_same = pair.is_pair() && pair.by == PairedBy::kName;
    if (pair.before >= 0 && !is_same) {
      out.missing.push_back(fmt::format("lane {}: in the baseline, not in this run",
                                        baseline.lanes[static_cast<size_t>(pair.before)].name));
    }
    if (pair.after >= 0 && !is_same) {
      out.not_comparable.push_back(fmt::format("lane {}: in this run, not in the baseline",
                                               run.lanes[static_cast<size_t>(pair.after)].name));
    }
    if (!is_same) continue;
    const LaneFacts& ours = run.lanes[static_cast<size_t>(pair.after)];
    const LaneFacts& theirs = baseline.lanes[static_cast<size_t>(pair.before)];
    if (!pair.same_policy) {
      out.not_comparable.push_back(fmt::format("lane {}: its policy differs", ours.name));
    } else if (!pair.same_engine) {
      out.not_comparable.push_back(fmt::format("lane {}: engine {}@{} here, {}@{} in the baseline",
                                               ours.name, ours.engine, ours.target, theirs.engine,
                                               theirs.target));
    } else {
      out.lanes.push_back(pair);
    }
  }
}

}  // namespace

ComparableLanes comparable_lanes(const RunFile& run, const RunFile& baseline) {
  const RunFacts ours = facts_of(run), theirs = facts_of(baseline);
  const RunMatch match = match_runs(theirs, ours);
  ComparableLanes out;
  out.not_comparable = differences(ours, theirs, match);
  out.remarks = remarks(run, baseline, match);
  if (!out.not_comparable.empty()) return out;
  compare_lanes(ours, theirs, match, out);
  if (ours.steps < theirs.steps) {
    out.missing.push_back(
        fmt::format("steps: {} here, {} in the baseline", ours.steps, theirs.steps));
  } else if (ours.steps > theirs.steps) {
    out.not_comparable.push_back(
        fmt::format("steps from {} on: not in the baseline", theirs.steps));
  }
  return out;
}

}  // namespace lockstep
