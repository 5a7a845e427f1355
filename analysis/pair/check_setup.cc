// Compares models, data, options, policies and environments of two run files.
#include "analysis/pair/check_setup.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "src/core/text.h"
#include "src/graph/json_text.h"
#include "src/train/run_option_rows.h"
#include "src/train/run_option_text.h"
#include "src/update/optimizers.h"

namespace lockstep {
namespace {

std::string text_of(const RunOption& row, const RunOptions& options) {
  return row.setting_text != nullptr ? row.setting_text(options) : option_text(row, options);
}

// Of an optimizer or a schedule, with all of its numbers.
struct FullChoice {
  std::string name;
  HyperValues numbers;

  std::string text() const { return name + " " + hyper_values_text(numbers); }
};

FullChoice choice_of(const HyperChoice& choice, std::span<const HyperParameter> parameters) {
  return {choice.name, HyperNumbers(parameters, choice.values).all()};
}
FullChoice choice_of(const OptimizerSpec& optimizer) {
  return choice_of(optimizer, find_optimizer(optimizer.name).parameters);
}

// Of the same row each number that differs, "optimizer lr": in one text it would be hard to find.
void compare_choices(std::string_view what, const FullChoice& ours, const FullChoice& theirs,
                     std::vector<SetupDifference>& out) {
  if (ours.name != theirs.name) {
    out.push_back({std::string(what), ours.text(), theirs.text()});
    return;
  }
  for (const auto& [name, number] : ours.numbers) {
    const std::string a = fmt::format("{}", number);
    const std::string b = fmt::format("{}", theirs.numbers.at(name));
    if (a != b) out.push_back({fmt::format("{} {}", what, name), a, b});
  }
}

// Group by group: "group fc1 lr"; a group that is not the same layers', as a whole.
void compare_groups(std::string_view what, const std::vector<ParameterGroup>& ours,
                    const std::vector<ParameterGroup>& theirs, std::vector<SetupDifference>& out) {
  const auto text_of = [](const std::vector<ParameterGroup>& groups, size_t i) {
    return i < groups.size() ? groups[i].layers + ": " + choice_of(groups[i].optimizer).text() : "";
  };
  for (size_t i = 0; i < std::max(ours.size(), theirs.size()); ++i) {
    const bool in_both = i < ours.size() && i < theirs.size();
    if (in_both && ours[i].layers == theirs[i].layers) {
      compare_choices(fmt::format("{} {}", what, ours[i].layers), choice_of(ours[i].optimizer),
                      choice_of(theirs[i].optimizer), out);
    } else {
      out.push_back({fmt::format("{} {}", what, i + 1), text_of(ours, i), text_of(theirs, i)});
    }
  }
}

void compare_option(const RunOption& row, const RunOptions& run, const RunOptions& baseline,
                    std::vector<SetupDifference>& out) {
  if (row.setting.empty()) return;
  if (const auto* choice = std::get_if<OptionMember<HyperChoice>>(&row.member)) {
    const HyperChoice &ours = choice->of(run), &theirs = choice->of(baseline);
    compare_choices(row.setting, choice_of(ours, row.numbers(ours.name)),
                    choice_of(theirs, row.numbers(theirs.name)), out);
  } else if (const auto* groups =
                 std::get_if<OptionMember<std::vector<ParameterGroup>>>(&row.member)) {
    compare_groups(row.setting, groups->of(run), groups->of(baseline), out);
  } else if (std::string ours = text_of(row, run), theirs = text_of(row, baseline);
             ours != theirs) {
    out.push_back({std::string(row.setting), std::move(ours), std::move(theirs)});
  }
}

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
    result.not_comparable.push_back(difference_text(d));
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

std::vector<SetupDifference> setup_differences(const RunOptions& run, const RunOptions& baseline) {
  std::vector<SetupDifference> differences;
  for (const RunOption& row : run_options()) compare_option(row, run, baseline, differences);
  return differences;
}

std::vector<SetupDifference> setup_differences(const RunOptions& run, const RunOptions& baseline,
                                               OptionEffect effect) {
  std::vector<SetupDifference> differences;
  for (const RunOption& row : run_options()) {
    if (row.effect == effect) compare_option(row, run, baseline, differences);
  }
  return differences;
}

std::string difference_text(const SetupDifference& difference) {
  return fmt::format("{}: '{}' here, '{}' in the baseline", difference.name, difference.run,
                     difference.baseline);
}

std::string other_measured_steps(const RunOptions& run, const RunOptions& baseline) {
  const int64_t ours = run.measuring.statistics_every, theirs = baseline.measuring.statistics_every;
  if (ours != theirs) {
    return fmt::format("statistics-every: {} here, {} in the baseline", ours, theirs);
  }
  if (run.measuring.counts_between == baseline.measuring.counts_between) return "";
  return fmt::format("statistics: {}", run.measuring.counts_between
                                           ? "health here, not in the baseline"
                                           : "health in the baseline, not here");
}

std::vector<std::pair<std::string, std::string>> setup_in_words(const RunOptions& options) {
  std::vector<std::pair<std::string, std::string>> words;
  for (const RunOption& row : run_options()) {
    if (row.setting.empty() || !row.in_baselines || row.repeats) continue;
    if (const auto* choice = std::get_if<OptionMember<HyperChoice>>(&row.member)) {
      const HyperChoice& chosen = choice->of(options);
      words.emplace_back(row.setting, chosen.name);
      for (const auto& [name, number] : choice_of(chosen, row.numbers(chosen.name)).numbers) {
        words.emplace_back(fmt::format("{} {}", row.setting, name), fmt::format("{}", number));
      }
      continue;
    }
    const bool is_capture =
        address_of(row, options) == &options.model && !options.capture_hash.empty();
    words.emplace_back(row.setting, is_capture ? "a capture" : text_of(row, options));
  }
  return words;
}

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
