// lockstep recommend: the range table of a run, and the policy that follows from it.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "analysis/recommend/pytorch_module.h"
#include "analysis/recommend/recommend.h"
#include "reports/range_text.h"
#include "src/cli/arguments.h"
#include "src/cli/command.h"
#include "src/cli/number_options.h"
#include "src/core/error.h"
#include "src/core/text.h"
#include "src/core/text_file.h"
#include "src/models/model.h"
#include "src/policy/find_policy.h"
#include "src/record/capture/capture_block.h"
#include "src/update/optimizers.h"
#include "src/update/schedules.h"

namespace lockstep {
namespace {

constexpr std::string_view kPolicyExtension = ".toml", kPythonExtension = ".py";
constexpr size_t kCommandWidth = 96;

struct RecommendArgs {
  std::string run, formats = "fp16", output, emit_pytorch;
  bool overwrite = false;
};

// A name for a run file that does not exist yet, so that a printed command runs unchanged.
std::string free_name(const std::string& stem) {
  std::string name = stem + ".h5";
  std::error_code error;
  for (int k = 2; std::filesystem::exists(name, error); ++k)
    name = fmt::format("{}-{}.h5", stem, k);
  return name;
}

// Models and captures hold no histograms: the two commands that record and read them.
void refuse_what_has_not_run(const RecommendArgs& args) {
  std::error_code error;
  const bool is_file = std::filesystem::exists(args.run, error);
  const bool is_capture = is_file && looks_like_capture(args.run);
  if (!is_capture && (is_file || std::ranges::none_of(
                                     models(), [&](const Model& m) { return m.name == args.run; })))
    return;
  std::string stem = args.run;
  for (const std::string_view ending : {".h5", ".lscap"}) {
    if (stem.ends_with(ending)) stem.resize(stem.size() - ending.size());
  }
  const std::string run = shell_quoted(free_name(stem + ".run"));
  std::string options;
  if (args.formats != RecommendArgs().formats)
    options += " --formats " + shell_quoted(args.formats);
  if (!args.output.empty()) options += " -o " + shell_quoted(args.output);
  if (!args.emit_pytorch.empty()) options += " --emit-pytorch " + shell_quoted(args.emit_pytorch);
  if (args.overwrite) options += " --overwrite";
  throw InputError(
      fmt::format("recommend {}: is a {}, must be a run file: its histograms are the evidence",
                  args.run, is_capture ? "capture" : "model"),
      fmt::format("run it first:\n  lockstep replay {} -o {}\n  lockstep recommend {}{}",
                  shell_quoted(args.run), run, run, options));
}

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
}

// The replay of `o` with other lanes: every option that is not at its default, a few to a line.
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
  if (o.mode == LaneMode::kSynced) words.emplace_back("--mode synced");
  add(words, "--seed", o.seed, d.seed);
  if (o.backward_per_loss) words.emplace_back("--backward per-loss");
  if (!o.freeze.empty()) words.push_back("--freeze " + shell_quoted(join(o.freeze, ",")));
  if (!o.eval_batch_norm.empty()) {
    words.push_back("--eval-batch-norm " + shell_quoted(join(o.eval_batch_norm, ",")));
  }
  if (o.batch_norm_eps) words.push_back(fmt::format("--batch-norm-eps {}", *o.batch_norm_eps));
  add(words, "--histogram-every", o.histogram_every, d.histogram_every);
  add(words, "--sums-every", o.sums_every, d.sums_every);
  add(words, "--checkpoint-every", o.checkpoint_every, d.checkpoint_every);
  words.push_back("-o " + shell_quoted(output));

  std::string text, line = "  lockstep replay " + shell_quoted(o.model);
  for (const std::string& word : words) {
    if (line.size() + word.size() + std::string_view("  \\").size() > kCommandWidth) {
      text += line + " \\\n";
      line = "   ";
    }
    line += " " + word;
  }
  return text + line;
}

// `name`: empty if the option was not given.
void check_text_output(const std::string& option, const std::string& name,
                       std::string_view extension, bool overwrite, ProblemList& problems) {
  if (name.empty()) return;
  if (!name.ends_with(extension)) {
    problems.add(fmt::format("{} {}: a name that ends in {} required", option, name, extension),
                 fmt::format("{} {}{}", option, name, extension));
  }
  check_output(name, overwrite ? Replace::kText : Replace::kNothing,
               fmt::format("{} OTHER, or --overwrite", option), problems);
}

int run_recommend(const RecommendArgs& args) {
  refuse_what_has_not_run(args);
  ProblemList problems("recommend");
  check_text_output("-o", args.output, kPolicyExtension, args.overwrite, problems);
  check_text_output("--emit-pytorch", args.emit_pytorch, kPythonExtension, args.overwrite,
                    problems);
  std::optional<RunFile> opened;
  collect_problems(problems, [&] { opened.emplace(args.run); });
  problems.throw_if_any();
  const RunFile& run = *opened;
  const Recommendation found = recommend(run, args.formats);
  fmt::print("{}", range_text(found));
  if (!args.emit_pytorch.empty()) {
    write_text_file_atomically(args.emit_pytorch,
                               pytorch_module(run, parse_policy(found.policy, args.run)));
    fmt::print("\nWrote {}: its first lines say how to use it.\n", args.emit_pytorch);
  }
  if (args.output.empty()) {
    fmt::print("\nThe policy (write it with -o policy.toml):\n\n{}", found.policy);
    return kExitFine;
  }
  write_text_file_atomically(args.output, found.policy);
  fmt::print("\nWrote {}. To see what it does:\n{}\n", args.output,
             replay_command(run.options(), "fp32," + args.output, free_name("verify")));
  return kExitFine;
}

}  // namespace

std::function<int()> declare_recommend(CLI::App& app) {
  auto args = std::make_shared<RecommendArgs>();
  app.add_option("RUN", args->run, "a run file; its fp32 lane's histograms are the evidence")
      ->type_name("")
      ->required();
  app.add_option("--formats", args->formats, "fp16 or bf16")
      ->type_name("NAME")
      ->capture_default_str();
  app.add_option("-o,--output", args->output, "write the policy here, NAME.toml")
      ->type_name("FILE");
  app.add_option("--emit-pytorch", args->emit_pytorch,
                 "write the advice here as a Python module for PyTorch, NAME.py")
      ->type_name("FILE");
  app.add_flag("--overwrite", args->overwrite, "replace FILE if it exists (never an HDF5 file)");
  app.footer(
      "Rests on ranges only; nothing is searched. Finds the loss scales that keep every gradient\n"
      "inside the format, and the layers that no scale suits.");
  return [args] { return run_recommend(*args); };
}

}  // namespace lockstep
