// See search_arguments.h.
#include "src/cli/arguments/search_arguments.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>

#include "src/cli/arguments/arguments.h"
#include "src/cli/command.h"
#include "src/cli/terminal/stop_signal.h"
#include "src/core/text.h"

namespace lockstep {
namespace {

// The GPU of estimates where kDefaultGpu has no unit for a format.
constexpr std::string_view kBlockGpu = "b200";

// "24", "10m" or both: candidates and minutes.
SearchBudget parse_budget(const std::string& text, ProblemList& problems) {
  SearchBudget budget;
  bool has_count = false;
  for (const std::string& part : split(text, ',')) {
    const bool is_minutes = part.ends_with('m');
    const char* const end = part.data() + part.size() - (is_minutes ? 1 : 0);
    int64_t number = 0;
    const auto [stop, error] = std::from_chars(part.data(), end, number);
    if (error != std::errc() || stop != end || number < (is_minutes ? 1 : 0)) {
      problems.add(
          fmt::format("--budget {}: a number of candidates, of minutes, or both required", text),
          "for example --budget 24, --budget 10m, --budget 24,10m");
      return budget;
    }
    if (is_minutes) {
      budget.minutes = static_cast<double>(number);
    } else {
      budget.candidates = number;
      has_count = true;
    }
  }
  if (budget.minutes && !has_count) budget.candidates = kLargestCount;
  return budget;
}

}  // namespace

SearchOptions search_options(const SearchWords& words, ProblemList& problems) {
  SearchOptions options;
  options.formats = split(words.formats, ',');
  const auto is_narrow = [](const std::string& f) { return find_narrow_format(f) != nullptr; };
  for (const std::string& format : options.formats) {
    if (!is_narrow(format)) collect_problems(problems, [&] { autocast_policy(format); });
  }
  // Narrow formats need a base.
  if (std::ranges::all_of(options.formats, is_narrow))
    options.formats.insert(options.formats.begin(), "bf16");
  std::vector<std::string> subjects;
  for (const MemoryChoice& choice : memory_choices()) {
    if (std::ranges::count(subjects, choice.subject) == 0) subjects.emplace_back(choice.subject);
  }
  if (!words.also.empty()) options.also = split(words.also, ',');
  for (const std::string& subject : options.also) {
    if (std::ranges::count(subjects, subject) > 0) continue;
    problems.add(fmt::format("--also {}: one of {} required", subject, join(subjects, ", ")),
                 did_you_mean(subject, subjects));
  }
  options.budget = parse_budget(words.budget, problems);
  const bool needs_blocks = std::ranges::any_of(options.formats, [](const std::string& format) {
    const NarrowFormat* narrow = find_narrow_format(format);
    return narrow != nullptr && peak_rate(find_gpu(kDefaultGpu), narrow->unit) == 0;
  });
  const std::string gpu = !words.gpu.empty() ? words.gpu
                          : needs_blocks     ? std::string(kBlockGpu)
                                             : std::string(kDefaultGpu);
  collect_problems(problems, [&] { options.gpu = &find_gpu(gpu); });
  return options;
}

std::string gpu_help() {
  std::vector<std::string> names;
  for (const Gpu& gpu : gpus()) names.emplace_back(gpu.name);
  return fmt::format("of the estimates of time: {} [{}; {} for mxfp8 and nvfp4]", join(names, ", "),
                     kDefaultGpu, kBlockGpu);
}

int search_stopped(const std::string& folder) {
  fmt::print(stderr,
             "Stopped; complete runs are kept in {}. The same command goes on from there.\n",
             printable(folder));
  return kExitSignalBase + stop_signal();
}

std::vector<std::string> not_tested(const Advice& advice) {
  std::vector<std::string> formats, also, out;
  for (const BaseFormat& base : base_formats()) {
    const bool ran = std::ranges::any_of(advice.tried, [&](const Trial& trial) {
      return trial.candidate.format == base.format ||
             (trial.candidate.tf32 && is_tf32(std::string(base.format)));
    });
    if (!ran) formats.emplace_back(base.format);
  }
  for (const NarrowFormat& narrow : narrow_formats()) {
    const bool ran = std::ranges::any_of(
        advice.tried, [&](const Trial& trial) { return trial.candidate.narrow == narrow.format; });
    if (!ran) formats.emplace_back(narrow.format);
  }
  for (const MemoryChoice& choice : memory_choices()) {
    const bool ran = std::ranges::any_of(advice.memory, [&](const MemoryOutcome& outcome) {
      return find_memory_choice(outcome.choice).subject == choice.subject;
    });
    const std::string subject =
        choice.subject == "state" ? "optimizer state" : std::string(choice.subject);
    if (!ran && std::ranges::count(also, subject) == 0) also.push_back(subject);
  }
  if (!formats.empty()) out.push_back(join(formats, ", ") + " (--formats)");
  if (!also.empty()) out.push_back("narrower " + join(also, ", ") + " (--also)");
  return out;
}

}  // namespace lockstep
