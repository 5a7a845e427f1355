// lockstep recommend: runs candidates of a model or a capture, or reads the ranges of a run.
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
#include "analysis/recommend/search.h"
#include "reports/advice_text.h"
#include "reports/range_text.h"
#include "src/cli/arguments.h"
#include "src/cli/capture_argument.h"
#include "src/cli/command.h"
#include "src/cli/number_options.h"
#include "src/cli/progress.h"
#include "src/cli/recommend_fix.h"
#include "src/cli/stop_signal.h"
#include "src/cli/terminal.h"
#include "src/core/error.h"
#include "src/core/text.h"
#include "src/core/text_file.h"
#include "src/models/model.h"
#include "src/policy/find_policy.h"
#include "src/record/capture/capture_block.h"
#include "src/record/capture/capture_reader.h"
#include "src/update/optimizers.h"
#include "src/update/schedules.h"

namespace lockstep {
namespace {

constexpr std::string_view kPolicyExtension = ".toml", kPythonExtension = ".py";
constexpr size_t kCommandWidth = 96;
constexpr int64_t kSearchSteps = 60;

struct RecommendArgs {
  RunOptions options;  // of the replays; its model is MODEL, a capture or a run file
  std::string sizes, formats = "fp16,bf16", fix, output, emit_pytorch;
  int64_t budget = 24;
  double tolerance = kToleratedShare;
  bool prove = false, overwrite = false, all = false, json = false, quiet = false;

  const std::string& run() const { return options.model; }
};

struct RecommendOptions {
  std::vector<CLI::Option*> of_models;   // a capture defines these
  std::vector<CLI::Option*> of_runs;     // of candidates: a run file has none
  std::vector<CLI::Option*> not_of_fix;  // of the search for a policy
  CLI::Option *tolerance = nullptr, *steps = nullptr;
};

// A name for a run file that does not exist yet, so that a printed command runs unchanged.
std::string free_name(const std::string& stem) {
  std::string name = stem + ".h5";
  std::error_code error;
  for (int k = 2; std::filesystem::exists(name, error); ++k)
    name = fmt::format("{}-{}.h5", stem, k);
  return name;
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

// --emit-pytorch: the policy as a Python module, for the model of `run`.
void emit_pytorch(const RecommendArgs& args, const RunFile& run, const std::string& policy,
                  const std::string& evidence) {
  if (args.emit_pytorch.empty()) return;
  std::vector<std::string> unsaid;
  const std::string text =
      pytorch_module(run, parse_policy(policy, "the policy"), evidence, unsaid);
  write_text_file_atomically(args.emit_pytorch, text);
  for (const std::string& sentence : unsaid) {
    fmt::print(stderr, "lockstep: note: {} cannot do: {}\n", args.emit_pytorch, sentence);
  }
  if (args.json) return;
  fmt::print("\nWrote {}: its first lines say how to use it.\n", args.emit_pytorch);
}

// From the ranges of a recorded run: nothing is run.
int recommend_from_run(const RecommendArgs& args, const std::vector<std::string>& formats,
                       ProblemList& problems) {
  std::optional<RunFile> opened;
  collect_problems(problems, [&] { opened.emplace(args.run()); });
  problems.throw_if_any();
  const RunFile& run = *opened;
  const Recommendation found = recommend(run, formats.front());
  fmt::print(
      "{}\nRanges only: nothing was run. `lockstep recommend {}` runs candidates and judges "
      "them.\n",
      range_text(found.ranges), shell_quoted(run.options().model));
  emit_pytorch(args, run, found.candidate.toml,
               fmt::format("exponent histograms of the fp32 lane of {}, {} steps of {}; nothing "
                           "was run",
                           run.path(), run.steps(), run.options().model));
  if (args.output.empty()) {
    fmt::print("\nThe policy (write it with -o policy.toml):\n\n{}", found.candidate.toml);
  } else {
    write_text_file_atomically(args.output, found.candidate.toml);
    fmt::print("\nWrote {}. To see what it does:\n{}\n", args.output,
               replay_command(run.options(), "fp32," + args.output, free_name("verify")));
  }
  return kExitFine;
}

// "lenet.recommend", in the working folder.
std::string search_folder(const std::string& model) {
  std::string stem = std::filesystem::path(model).filename().string();
  for (const std::string_view ending : {".h5", ".lscap"}) {
    if (stem.ends_with(ending)) stem.resize(stem.size() - ending.size());
  }
  return stem + ".recommend";
}

// Runs candidates.
int recommend_by_running(RecommendArgs& args, const std::vector<std::string>& formats) {
  AdviceFacts facts;
  facts.model = args.run();
  facts.folder = search_folder(args.run());
  RunOptions& options = args.options;
  if (is_capture(options.model)) {
    const Capture capture = read_capture(options.model, CaptureUse::kReplay);
    options.capture_hash = capture.sha256;
    const auto captured = static_cast<int64_t>(capture.steps.size());
    options.cycle = captured < options.steps;
    if (options.cycle) facts.captured_steps = captured;
  }
  options.held_out = false;  // losses are judged
  const auto watch = [&]() -> std::unique_ptr<Observer> {
    if (args.quiet || args.json) return nullptr;
    return std::make_unique<Progress>(0, options.steps, "");
  };
  TrialRuns runs(options, facts.folder, LOCKSTEP_VERSION, catch_stop_signals(), watch);
  std::optional<Advice> advice;
  try {
    advice.emplace(search(runs, formats, args.budget));
    if (args.prove && advice->chosen) {
      if (options.capture_hash.empty()) {
        facts.proof = prove(runs, advice->chosen->candidate, args.tolerance);
      } else {
        facts.no_proof =
            "No proof: a capture has the weights and batches of one run, so no new seeds can be "
            "run. Its steps show what these formats do to these batches.";
      }
    }
  } catch (const SearchStopped&) {
    fmt::print(stderr,
               "Stopped; complete runs are kept in {}. The same command goes on from there.\n",
               facts.folder);
    return kExitSignalBase + stop_signal();
  }
  facts.replays = runs.replays();
  facts.lanes = runs.lanes();
  facts.read_again = runs.read_again();
  facts.all = args.all;
  fmt::print("{}",
             args.json ? advice_json(*advice, facts) : advice_text(*advice, facts, output_style()));
  const bool refuted = facts.proof && facts.proof->result == Proof::Result::kFail;
  if (!advice->chosen || refuted) {
    if (!args.output.empty() || !args.emit_pytorch.empty()) {
      fmt::print(stderr, "lockstep: note: there is no policy to write\n");
    }
    return refuted ? kExitRegression : kExitFine;
  }
  const Candidate& chosen = advice->chosen->candidate;
  emit_pytorch(args, RunFile(runs.last_path()), policy_text(chosen),
               fmt::format("trained as fp32 did in {} steps of {}", advice->steps, args.run()));
  if (!args.output.empty()) {
    write_text_file_atomically(args.output, policy_text(chosen));
    if (!args.json) fmt::print("Wrote {}.\n", args.output);
  }
  const bool is_proven = facts.proof && facts.proof->result == Proof::Result::kPass;
  return args.prove && !is_proven ? kExitInconclusive : kExitFine;
}

// A lane that goes wrong: of a model, a capture, or a run file, whose options apply.
int fix_lane_of(RecommendArgs& args, const RecommendOptions& options, bool is_run,
                ProblemList& problems) {
  for (const CLI::Option* option : options.not_of_fix) {
    if (option->count() == 0) continue;
    problems.add(fmt::format("{}: not with --fix", option->get_name()), "leave one of them out");
  }
  FixArgs fix{.options = args.options,
              .lane = args.fix,
              .output = args.output,
              .folder = search_folder(args.run()),
              .budget = args.budget,
              .json = args.json,
              .quiet = args.quiet};
  if (is_run) {
    for (const CLI::Option* option : options.of_models) {
      if (option->count() == 0) continue;
      problems.add(fmt::format("{}: the run file {} says it", option->get_name(), args.run()),
                   "leave it out");
    }
    const int64_t steps = options.steps->count() > 0 ? args.options.steps : 0;
    collect_problems(problems, [&] { fix.options = options_of_run(args.run(), steps); });
  } else if (is_capture(args.run())) {
    refuse_captured(args.run(), options.of_models, problems);
  }
  problems.throw_if_any();
  return recommend_fix(fix);
}

void check_recommend_options(const RecommendArgs& args, const RecommendOptions& options,
                             const std::vector<std::string>& formats, ProblemList& problems) {
  for (size_t i = 0; i < formats.size(); ++i) {
    if (std::count(formats.begin(), formats.begin() + static_cast<int64_t>(i), formats[i]) > 0) {
      problems.add(fmt::format("--formats {}: {} is there twice", args.formats, formats[i]));
    }
  }
  if (options.tolerance->count() > 0 && !args.prove) {
    problems.add("--tolerance: only for --prove", "add --prove, or leave it out");
  }
  if (!(args.tolerance > 0 && args.tolerance < 1)) {
    problems.add(
        fmt::format("--tolerance {}: must lie between 0 and 1, a share of the fall of "
                    "fp32's loss",
                    args.tolerance));
  }
}

int run_recommend(RecommendArgs& args, const RecommendOptions& options, ProblemList& problems) {
  const std::vector<std::string> formats = split(args.formats, ',');
  check_recommend_options(args, options, formats, problems);
  check_text_output("-o", args.output, kPolicyExtension, args.overwrite, problems);
  check_text_output("--emit-pytorch", args.emit_pytorch, kPythonExtension, args.overwrite,
                    problems);
  for (const std::string& format : formats) {
    collect_problems(problems, [&] { autocast_policy(format); });
  }
  std::error_code error;
  const bool is_run = std::filesystem::exists(args.run(), error) &&
                      !looks_like_capture(args.run()) &&
                      std::ranges::none_of(models(), [&](auto& m) { return m.name == args.run(); });
  if (!args.fix.empty()) return fix_lane_of(args, options, is_run, problems);
  if (is_run) {
    for (const CLI::Option* option : options.of_runs) {
      if (option->count() == 0) continue;
      problems.add(fmt::format("{}: {} is a run file, of which nothing is run", option->get_name(),
                               args.run()),
                   "give the model or the capture, or leave it out");
    }
    return recommend_from_run(args, formats, problems);
  }
  if (is_capture(args.run())) refuse_captured(args.run(), options.of_models, problems);
  problems.throw_if_any();
  return recommend_by_running(args, formats);
}

}  // namespace

std::function<int()> declare_recommend(CLI::App& app) {
  auto args = std::make_shared<RecommendArgs>();
  const ArgumentChecks checks("recommend");
  RunOptions& o = args->options;
  o.model.clear();
  o.steps = kSearchSteps;
  app.add_option("MODEL", o.model,
                 "a built-in model or a capture: candidates are run and judged; or a run file: its "
                 "ranges are read, nothing is run")
      ->type_name("")
      ->required();
  app.add_option(
         "--formats", args->formats,
         "in this order: the next where nothing in the one before passes; of a run file, the "
         "first")
      ->type_name("A,B")
      ->capture_default_str();
  app.add_option("--fix", args->fix,
                 "a lane that goes wrong, a preset or a policy file: runs the remedies of what is "
                 "found in it; of a run file: with its options; exit code 3: none helped")
      ->type_name("LANE");
  RecommendOptions options;
  options.not_of_fix = {app.get_option("--formats")};
  const auto of_runs = [&](CLI::Option* option, const char* type) {
    options.of_runs.push_back(option->type_name(type));
    return option;
  };
  checks.whole(
      of_runs(app.add_option("--steps", o.steps, "of every run; a capture's are repeated"), "N")
          ->capture_default_str(),
      1, kLargestCount);
  options.steps = app.get_option("--steps");
  checks.whole(
      of_runs(app.add_option("--budget", args->budget, "candidates to run beyond the first lane"),
              "N")
          ->capture_default_str(),
      0, kLargestCount);
  options.of_runs.push_back(app.add_flag(
      "--prove", args->prove,
      "run what is recommended on 5 to 12 new seeds, against the tolerance; exit code 1: refuted, "
      "3: inconclusive"));
  options.not_of_fix.push_back(app.get_option("--prove"));
  options.tolerance = of_runs(app.add_option("--tolerance", args->tolerance,
                                             "how much larger than fp32's the loss may be, as a "
                                             "share of the fall of fp32's loss"),
                              "X");
  checks.number(options.tolerance->capture_default_str());
  const auto of_models = [&](CLI::Option* option, const char* type) {
    options.of_models.push_back(of_runs(option, type));
    return option;
  };
  of_models(app.add_option("--data", o.data, "see `lockstep list data` [the model's default]"),
            "SPEC");
  checks.named_numbers(
      of_models(app.add_option("--size", args->sizes, "sizes, e.g. layers=2,width=64"),
                "NAME=X,..."),
      o.sizes);
  checks.whole(of_models(app.add_option("--batch", o.batch, "examples per step"), "N"), 1,
               kLargestBatch);
  checks.whole(of_models(app.add_option("--seed", o.seed, "of weights, batches and noise"), "N"), 0,
               UINT64_MAX);
  app.add_option("-o,--output", args->output, "write the policy here, NAME.toml")
      ->type_name("FILE");
  app.add_option("--emit-pytorch", args->emit_pytorch,
                 "write the advice here as a Python module for PyTorch, NAME.py")
      ->type_name("FILE");
  options.not_of_fix.push_back(app.get_option("--emit-pytorch"));
  app.add_flag("--overwrite", args->overwrite, "replace FILE if it exists (never an HDF5 file)");
  app.add_flag("--all", args->all, "the whole table of ranges, too");
  options.of_runs.push_back(app.add_flag("--json", args->json, "print JSON instead of text"));
  app.add_flag("--quiet", args->quiet, "no progress");
  app.footer(
      "Runs plain autocast and FP32 side by side first; if both train alike, nothing needs doing.\n"
      "Otherwise keeps layers in FP32 (by their ranges, by what broke, by what moves the loss)\n"
      "until a candidate trains as FP32 does, then lets go of every layer it can. The runs are\n"
      "kept in NAME.recommend: the same command, begun again, goes on from there.\n"
      "--fix runs a lane that goes wrong instead, takes its gravest finding, and runs what can be\n"
      "done about it, from one value to the whole policy (docs/findings.md).");
  return [args, checks, options] { return run_recommend(*args, options, checks.problems()); };
}

}  // namespace lockstep
