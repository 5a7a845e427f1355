// See settings.h.
#include "analysis/pair/settings.h"

#include <fmt/format.h>

#include <algorithm>

#include "src/core/text.h"
#include "src/update/optimizers.h"
#include "src/update/schedules.h"

namespace lockstep {
namespace {

// The options that affect the numbers, as text. Steps and the intervals of statistics, evaluations
// and histograms only decide how much is recorded.
std::vector<std::pair<std::string, std::string>> setup_of(const RunOptions& o) {
  return {
      {"model", o.capture_hash.empty() ? o.model : "capture with SHA-256 " + o.capture_hash},
      {"data", o.data.substr(0, o.data.find(':'))},
      {"batch", fmt::format("{}", o.batch)},
      {"seed", fmt::format("{}", o.seed)},
      {"mode", o.mode == LaneMode::kFree ? "free" : "synced"},
      {"decisions", o.decisions == Decisions::kRecorded ? "recorded" : "own"},
      {"accumulate", fmt::format("{}", o.accumulate)},
      {"workers", fmt::format("{}", o.workers)},
      {"backward", o.backward_per_loss ? "per-loss" : "joint"},
      {"clipping", fmt::format("{}-norm {}, value {}{}", o.clip_norm_type, o.clip_norm,
                               o.clip_value, o.clips_scaled ? ", before unscaling" : "")},
      {"factor of the loss", fmt::format("{}", o.loss_factor)},
      {"frozen layers", join(o.freeze, ",")},
      {"batch_norm in evaluation mode", join(o.eval_batch_norm, ",")},
      {"batch_norm eps", o.batch_norm_eps ? fmt::format("{}", *o.batch_norm_eps) : "own"},
      {"rewrites of the graph", join(o.rewrites, ",")},
      {"changed numbers of the loop", hyper_values_text(o.loop_changes)},
      {"start_from", o.start_from},
  };
}

HyperValues schedule_numbers(const RunOptions& o) {
  return HyperNumbers(find_schedule(o.schedule.name).parameters, o.schedule.values).all();
}

// The name of an optimizer or a schedule, with all of its numbers.
struct FullChoice {
  std::string name;
  HyperValues numbers;

  std::string text() const { return name + " " + hyper_values_text(numbers); }
};

FullChoice choice_of(const OptimizerSpec& optimizer) {
  return {optimizer.name, numbers_of(optimizer).all()};
}

// Lists each number of one row that differs, "optimizer lr": in one text it would be hard to find.
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
void compare_groups(const std::vector<ParameterGroup>& ours,
                    const std::vector<ParameterGroup>& theirs, std::vector<SetupDifference>& out) {
  const auto text_of = [](const std::vector<ParameterGroup>& groups, size_t i) {
    return i < groups.size() ? groups[i].layers + ": " + choice_of(groups[i].optimizer).text() : "";
  };
  for (size_t i = 0; i < std::max(ours.size(), theirs.size()); ++i) {
    const bool in_both = i < ours.size() && i < theirs.size();
    if (in_both && ours[i].layers == theirs[i].layers) {
      compare_choices("group " + ours[i].layers, choice_of(ours[i].optimizer),
                      choice_of(theirs[i].optimizer), out);
    } else {
      out.push_back({fmt::format("group {}", i + 1), text_of(ours, i), text_of(theirs, i)});
    }
  }
}

}  // namespace

std::vector<SetupDifference> setup_differences(const RunOptions& run, const RunOptions& baseline) {
  const auto ours = setup_of(run), theirs = setup_of(baseline);
  std::vector<SetupDifference> differences;
  for (size_t i = 0; i < ours.size(); ++i) {
    if (ours[i].second == theirs[i].second) continue;
    differences.push_back({ours[i].first, ours[i].second, theirs[i].second});
  }
  compare_choices("optimizer", choice_of(run.optimizer), choice_of(baseline.optimizer),
                  differences);
  compare_groups(run.groups, baseline.groups, differences);
  compare_choices("schedule", {run.schedule.name, schedule_numbers(run)},
                  {baseline.schedule.name, schedule_numbers(baseline)}, differences);
  return differences;
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
  for (auto& [name, value] : setup_of(options)) {
    if (name == "seed" || name == "start_from" || name == "data") continue;
    if (name == "model" && !options.capture_hash.empty()) value = "a capture";
    words.emplace_back(name, value);
  }
  const auto add = [&](std::string_view what, const FullChoice& choice) {
    words.emplace_back(what, choice.name);
    for (const auto& [name, number] : choice.numbers) {
      words.emplace_back(fmt::format("{} {}", what, name), fmt::format("{}", number));
    }
  };
  add("optimizer", {options.optimizer.name, numbers_of(options.optimizer).all()});
  add("schedule", {options.schedule.name, schedule_numbers(options)});
  return words;
}

}  // namespace lockstep
