// See settings.h.
#include "analysis/pair/settings.h"

#include <fmt/format.h>

#include <algorithm>

#include "src/train/run_option_rows.h"
#include "src/train/run_option_text.h"
#include "src/update/optimizers.h"

namespace lockstep {
namespace {

std::string text_of(const RunOption& row, const RunOptions& options) {
  return row.setting_text != nullptr ? row.setting_text(options) : option_text(row, options);
}

// The name of an optimizer or a schedule, with all of its numbers.
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

}  // namespace lockstep
