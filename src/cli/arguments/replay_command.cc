// See replay_command.h.
#include "src/cli/arguments/replay_command.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <string_view>
#include <vector>

#include "src/cli/arguments/number_options.h"
#include "src/cli/command.h"
#include "src/core/text.h"
#include "src/update/optimizers.h"
#include "src/update/schedules.h"

namespace lockstep {
namespace {

constexpr size_t kCommandWidth = 96;

// The given numbers that differ from `otherwise`.
HyperValues changed(const HyperChoice& choice, const HyperNumbers& otherwise) {
  HyperValues values;
  for (const auto& [name, value] : choice.values) {
    if (value != otherwise[name]) values.emplace(name, value);
  }
  return values;
}
HyperNumbers initial_numbers(std::span<const HyperParameter> parameters) {
  return {parameters, {}};
}

// In the syntax of parse_group: the numbers that differ from the run's optimizer, or another
// optimizer.
std::string group_words(const ParameterGroup& group, const OptimizerSpec& base) {
  const OptimizerSpec& spec = group.optimizer;
  if (spec.name == base.name) {
    const HyperValues values = changed(spec, numbers_of(base));
    return group.layers + ":" +
           (values.empty() ? "optimizer=" + spec.name : hyper_values_text(values));
  }
  const HyperValues values = changed(spec, initial_numbers(find_optimizer(spec.name).parameters));
  const std::string text = values.empty() ? "" : "," + hyper_values_text(values);
  return group.layers + ":optimizer=" + spec.name + text;
}

template <typename T>
void add(std::vector<std::string>& words, const char* name, const T& value, const T& otherwise) {
  if (value != otherwise) words.push_back(fmt::format("{} {}", name, value));
}

// How a built-in model was trained. A capture defines this itself, and replay rejects the options.
void add_training(const RunOptions& o, std::vector<std::string>& words) {
  const RunOptions d;  // the defaults
  if (!o.data.empty()) words.push_back("--data " + shell_quoted(o.data));
  std::vector<std::string> sizes;
  for (const auto& [name, value] : o.sizes) sizes.push_back(fmt::format("{}={}", name, value));
  if (!sizes.empty()) words.push_back("--size " + join(sizes, ","));
  add(words, "--batch", o.batch, d.batch);
  add(words, "--optimizer", o.optimizer.name, d.optimizer.name);
  HyperValues others;  // numbers without an option of their own
  const auto initial = initial_numbers(find_optimizer(o.optimizer.name).parameters);
  for (const auto& [name, value] : changed(o.optimizer, initial)) {
    if (std::ranges::count(kNumberOptions, name) > 0) {
      words.push_back(fmt::format("{} {}", option_name(name), value));
    } else {
      others.emplace(name, value);
    }
  }
  if (!others.empty()) words.push_back("--optimizer-args " + hyper_values_text(others));
  const HyperValues schedule =
      changed(o.schedule, initial_numbers(find_schedule(o.schedule.name).parameters));
  if (o.schedule.name != d.schedule.name || !schedule.empty()) {
    const std::string given = hyper_values_text(schedule);
    words.push_back("--schedule " + o.schedule.name + (given.empty() ? "" : ":" + given));
  }
  for (const ParameterGroup& group : o.groups) {
    words.push_back("--group " + shell_quoted(group_words(group, o.optimizer)));
  }
  add(words, "--accumulate", o.accumulate, d.accumulate);
  add(words, "--workers", o.workers, d.workers);
  add(words, "--clip-norm", o.clip_norm, d.clip_norm);
  add(words, "--clip-norm-type", o.clip_norm_type, d.clip_norm_type);
  add(words, "--clip-value", o.clip_value, d.clip_value);
  if (!o.start_from.empty()) words.push_back("--start-from " + shell_quoted(o.start_from));
  if (o.eval_in_fp32) words.emplace_back("--eval-policy fp32");
  add(words, "--eval-every", o.eval_every, d.eval_every);
  add(words, "--eval-examples", o.eval_examples, d.eval_examples);
}

}  // namespace

std::string replay_command(const RunOptions& o, const std::string& lanes,
                           const std::string& output) {
  const RunOptions d;  // the defaults
  const bool is_captured = !o.capture_hash.empty();
  std::vector<std::string> words;
  if (!is_captured) add_training(o, words);
  words.push_back("--lanes " + shell_quoted(lanes));
  // A capture's default is all of its steps.
  add(words, "--steps", o.steps, is_captured ? int64_t{0} : d.steps);
  if (o.cycle) words.emplace_back("--cycle");
  if (!o.captured_order.empty()) {
    words.push_back(fmt::format("--captured-order {}", fmt::join(o.captured_order, ",")));
  }
  if (o.mode == LaneMode::kSynced) words.emplace_back("--mode synced");
  add(words, "--seed", o.seed, d.seed);
  if (o.backward_per_loss) words.emplace_back("--backward per-loss");
  if (!o.freeze.empty()) words.push_back("--freeze " + shell_quoted(join(o.freeze, ",")));
  if (!o.eval_batch_norm.empty()) {
    words.push_back("--eval-batch-norm " + shell_quoted(join(o.eval_batch_norm, ",")));
  }
  if (o.batch_norm_eps) words.push_back(fmt::format("--batch-norm-eps {}", *o.batch_norm_eps));
  if (o.measuring.counts_between) words.emplace_back("--statistics health");
  add(words, "--statistics-every", o.measuring.statistics_every,
      o.measuring.counts_between ? 0 : d.measuring.statistics_every);
  add(words, "--histogram-every", o.measuring.histogram_every, d.measuring.histogram_every);
  add(words, "--sums-every", o.measuring.sums_every, d.measuring.sums_every);
  add(words, "--checkpoint-every", o.checkpoint_every, d.checkpoint_every);
  words.push_back("-o " + shell_quoted(output));

  std::string text, line = "  lockstep replay " + shell_path(o.model);
  for (const std::string& word : words) {
    if (line.size() + word.size() + std::string_view("  \\").size() > kCommandWidth) {
      text += line + " \\\n";
      line = "   ";
    }
    line += " " + word;
  }
  return text + line;
}

}  // namespace lockstep
