// See run_option_syntax.h.
#include "src/train/run_option_syntax.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "src/core/error.h"
#include "src/core/text.h"
#include "src/policy/twin_lane.h"
#include "src/train/run_option_text.h"
#include "src/update/optimizers.h"
#include "src/update/parameter_groups.h"
#include "src/update/schedules.h"

namespace lockstep {
namespace {

constexpr int64_t kUsualTwins = 1;

std::string printed(const RunOption& row, const std::string& value) {
  return fmt::format("{} {}", row.option, shell_quoted(value));
}

std::string without_target(const std::string& lane) {
  return lane.substr(0, lane.rfind('@'));
}

bool is_twin(const std::string& lane) {
  return twin_number(without_target(lane)) > 0;
}

// The optimizers with this number, in their own order.
std::vector<std::string> owners(std::string_view number) {
  std::vector<std::string> found;
  for (const Optimizer& optimizer : optimizers()) {
    if (std::ranges::count(optimizer.parameters, number, &HyperParameter::name) > 0) {
      found.emplace_back(optimizer.name);
    }
  }
  return found;
}

// The given numbers that are not those of `otherwise`.
HyperValues changed(const HyperChoice& choice, const HyperNumbers& otherwise) {
  HyperValues values;
  for (const auto& [name, value] : choice.values) {
    if (value != otherwise[name]) values.emplace(name, value);
  }
  return values;
}
HyperValues changed_from_initial(const HyperChoice& choice,
                                 std::span<const HyperParameter> parameters) {
  return changed(choice, HyperNumbers(parameters, {}));
}
HyperValues changed_numbers(const OptimizerSpec& spec) {
  return changed_from_initial(spec, find_optimizer(spec.name).parameters);
}

// In the syntax of parse_group: the numbers that differ from the run's optimizer, or another
// optimizer.
std::string group_text(const ParameterGroup& group, const OptimizerSpec& base) {
  const OptimizerSpec& spec = group.optimizer;
  const bool is_same = spec.name == base.name;
  const HyperValues values = is_same ? changed(spec, numbers_of(base)) : changed_numbers(spec);
  std::vector<std::string> parts;
  if (!is_same || values.empty()) parts.push_back("optimizer=" + spec.name);
  if (!values.empty()) parts.push_back(hyper_values_text(values));
  return group.layers + ":" + join(parts, ",");
}

// The words of --statistics. `every`: the steps between measured ones where they are not given.
struct StatisticsLevel {
  std::string_view name;
  int64_t every;
  bool counts_between, takes_every;
};
constexpr StatisticsLevel kStatisticsLevels[] = {
    {.name = "full", .every = 1, .counts_between = false, .takes_every = true},
    {.name = "health", .every = 0, .counts_between = true, .takes_every = true},
    {.name = "none", .every = 0, .counts_between = false, .takes_every = false}};

}  // namespace

void parse_lanes(const RunOption& row, std::string_view text, RunOptions& options) {
  std::vector<std::string> lanes = split(text, ',');
  if (std::ranges::count(lanes, "") > 0) {  // it would be ignored silently
    throw InputError(
        fmt::format("{} {}: a name before and after every comma required", row.option, text),
        fmt::format("e.g. {} fp32,tf32", row.option));
  }
  options.lanes = std::move(lanes);
}

std::vector<std::string> printed_lanes(const RunOption& row, const RunOptions& options) {
  RunOptions given = options, again = options;
  std::erase_if(given.lanes, is_twin);
  again.lanes = given.lanes;
  if (needs_twin(again)) add_twins(again, kUsualTwins);
  if (again.lanes == options.lanes) return {printed(row, join(given.lanes, ","))};
  again.lanes = options.lanes;
  if (needs_twin(again)) add_twins(again, kUsualTwins);
  std::vector<std::string> words = {printed(row, join(options.lanes, ","))};
  if (again.lanes != options.lanes) words.emplace_back("--twins 0");
  return words;
}

void add_twins(RunOptions& options, int64_t wanted) {
  std::vector<std::string>& lanes = options.lanes;
  int64_t there = std::ranges::count_if(lanes, is_twin);
  for (int number = 1; there < wanted && number <= kMostTwins; ++number) {
    const std::string twin = twin_name(number);
    if (std::ranges::count(lanes, twin, without_target) > 0) continue;
    lanes.push_back(twin);
    ++there;
  }
}

bool needs_twin(const RunOptions& options) {
  return options.mode == LaneMode::kFree &&
         std::ranges::any_of(options.lanes, [](const std::string& lane) {
           return lane != kReferenceLane && lane != kTruthLane && twin_number(lane) == 0;
         });
}

void parse_twins(const RunOption& row, std::string_view text, RunOptions& options) {
  add_twins(options, static_cast<int64_t>(whole_number(row.option, text, row.low, row.high)));
}

std::string usual_twins_text(const RunOptions&) {
  return fmt::format("{}", kUsualTwins);
}

std::string optimizer_number_help(std::string_view number) {
  std::string text;
  double last = std::numeric_limits<double>::quiet_NaN();
  for (const Optimizer& optimizer : optimizers()) {
    for (const HyperParameter& p : optimizer.parameters) {
      if (p.name != number) continue;
      if (p.initial == last) {
        text += fmt::format(", {}", optimizer.name);
      } else {
        if (!text.empty()) text += fmt::format(" {}; ", last);
        text += optimizer.name;
      }
      last = p.initial;
    }
  }
  return text + fmt::format(" {}", last);
}

void parse_optimizer_number(const RunOption& row, std::string_view text, RunOptions& options) {
  const std::string& optimizer = options.optimizer.name;
  const double value = any_number(row.option, text);
  const bool is_known = std::ranges::count(optimizers(), optimizer, &Optimizer::name) > 0;
  if (!is_known) return;  // LockstepRun reports it
  std::vector<std::string> names = owners(row.number);
  if (std::ranges::count(names, optimizer) == 0) {
    const std::string last = names.back();
    names.pop_back();
    throw InputError(fmt::format("{} {}: only {} and {} have it, --optimizer is {}", row.option,
                                 text, join(names, ", "), last, optimizer),
                     "leave it out");
  }
  options.optimizer.values[std::string(row.number)] = value;
}

std::vector<std::string> printed_optimizer_number(const RunOption& row, const RunOptions& options) {
  const HyperValues values = changed_numbers(options.optimizer);
  const auto found = values.find(row.number);
  if (found == values.end()) return {};
  return {printed(row, fmt::format("{}", found->second))};
}

void parse_optimizer_args(const RunOption& row, std::string_view text, RunOptions& options) {
  ProblemList problems("");
  for (const auto& [name, value] : parse_hyper_values(row.option, text)) {
    if (options.optimizer.values.emplace(name, value).second) continue;
    std::string option = name;
    std::ranges::replace(option, '_', '-');
    problems.add(fmt::format("--{}: also in {}", option, row.option), "give it once");
  }
  problems.throw_if_any();
}

std::vector<std::string> printed_optimizer_args(const RunOption& row,
                                                std::span<const RunOption> all,
                                                const RunOptions& options) {
  HyperValues values = changed_numbers(options.optimizer);
  for (const RunOption& own : all) values.erase(std::string(own.number));
  if (values.empty()) return {};
  return {printed(row, hyper_values_text(values))};
}

void parse_schedule_option(const RunOption&, std::string_view text, RunOptions& options) {
  options.schedule = parse_schedule(text);
}

std::vector<std::string> printed_schedule(const RunOption& row, const RunOptions& options) {
  const HyperChoice& schedule = options.schedule;
  const HyperValues values =
      changed_from_initial(schedule, find_schedule(schedule.name).parameters);
  if (values.empty() && schedule.name == RunOptions().schedule.name) return {};
  return {printed(
      row, values.empty() ? schedule.name : schedule.name + ":" + hyper_values_text(values))};
}

void parse_group_option(const RunOption&, std::string_view text, RunOptions& options) {
  options.groups.push_back(parse_group(text, options.optimizer));
}

std::vector<std::string> printed_groups(const RunOption& row, const RunOptions& options) {
  std::vector<std::string> words;
  for (const ParameterGroup& group : options.groups) {
    words.push_back(printed(row, group_text(group, options.optimizer)));
  }
  return words;
}

void parse_statistics(const RunOption& row, std::string_view text, RunOptions& options) {
  std::vector<std::string> names;
  for (const StatisticsLevel& level : kStatisticsLevels) names.emplace_back(level.name);
  const StatisticsLevel& level = kStatisticsLevels[known_word(row.option, text, names)];
  options.measuring.counts_between = level.counts_between;
  options.measuring.statistics_every = level.every;
}

void finish_statistics(std::string_view level, Measuring& measuring) {
  const int64_t every = measuring.statistics_every;
  if (every == 1) measuring.counts_between = false;  // no step is between
  const auto row = std::ranges::find(kStatisticsLevels, level, &StatisticsLevel::name);
  if (row == std::end(kStatisticsLevels) || row->takes_every || every == 0) return;
  throw InputError(fmt::format("--statistics {}: contradicts --statistics-every {}", level, every),
                   "leave one of them out");
}

std::string statistics_text(const RunOptions& options) {
  return std::string(kStatisticsLevels[options.measuring.counts_between ? 1 : 0].name);
}

std::vector<std::string> printed_statistics_every(const RunOption& row, const RunOptions& options) {
  const Measuring& measuring = options.measuring;
  const int64_t usual = kStatisticsLevels[measuring.counts_between ? 1 : 0].every;
  if (measuring.statistics_every == usual) return {};
  return {printed(row, fmt::format("{}", measuring.statistics_every))};
}

}  // namespace lockstep
