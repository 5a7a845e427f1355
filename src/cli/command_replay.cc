// lockstep replay: trains the lanes, records them, prints the summary.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <memory>
#include <optional>

#include "reports/section.h"
#include "src/cli/arguments.h"
#include "src/cli/command.h"
#include "src/cli/number_options.h"
#include "src/cli/progress.h"
#include "src/cli/stop_signal.h"
#include "src/core/error.h"
#include "src/core/parallel.h"
#include "src/core/text.h"
#include "src/record/capture_reader.h"
#include "src/record/run_file.h"
#include "src/train/lockstep.h"
#include "src/train/models/model.h"
#include "src/train/optimizers.h"
#include "src/train/parameter_groups.h"
#include "src/train/schedules.h"

namespace lockstep {
namespace {

constexpr char kDefaultOutput[] = "run.h5";
constexpr uint64_t kMostThreads = 256;
constexpr uint64_t kMostWorkers = 4096;

struct ReplayArgs {
  RunOptions options;
  std::map<std::string, std::string> numbers;  // as given, by name
  std::vector<std::string> groups;
  std::string optimizer_args, schedule = "constant", freeze, eval_batch_norm, eval_policy = "own";
  std::string mode = "free", backward = "joint", lanes = "fp32", sizes, output, resume_from, simd;
  int threads = 0;
  bool overwrite = false, quiet = false;
};

void print_end(const std::string& path, bool finished, bool quiet) {
  const RunFile run(path);
  if (!finished) {
    fmt::print(
        "Stopped after step {} of {}; {} is whole. To go on:\n  lockstep replay --resume {}\n",
        run.steps(), run.options().steps, path, path);
    return;
  }
  if (quiet) return;
  fmt::print("\n{}\n", report_text(read_report(run), /*summary_only=*/true));
  fmt::print(
      "Recorded {} steps in {}. Next:\n  lockstep report {}\n"
      "Only --resume needs {}.state, .state.1 and .progress.json: delete them at will.\n",
      run.steps(), path, shell_quoted(path), path);
}

int report_write_error(const WriteError& error, const std::string& path) {
  fmt::print(stderr,
             "lockstep: {}\nThe steps recorded before are whole. With room on the disk:\n"
             "  lockstep replay --resume {}\n",
             error.what(), path);
  return kExitUsage;
}

int execute(LockstepRun& run, RunFileWriter& writer, Progress* progress, const std::string& path) {
  for (const LaneDescription& lane : run.description().lanes) {
    for (const std::string& note : lane.policy.notes) {
      fmt::print(stderr, "lockstep: note: lane {}: {}\n", lane.name, note);
    }
    for (const std::string& warning : lane.warnings) {
      fmt::print(stderr, "lockstep: warning: lane {}: {}\n", lane.name, warning);
    }
  }
  run.add_observer(&writer);
  if (progress != nullptr) run.add_observer(progress);
  try {
    const bool finished = run.run(catch_stop_signals());
    return finished ? kExitFine : kExitSignalBase + stop_signal();
  } catch (const WriteError& error) {
    if (progress != nullptr) progress->on_finish();
    return report_write_error(error, path);
  }
}

std::unique_ptr<Progress> make_progress(const ReplayArgs& args, int64_t first, int64_t steps) {
  return args.quiet ? nullptr : std::make_unique<Progress>(first, steps);
}

// A lane without a name would change nothing without a word.
void check_lanes(const ReplayArgs& args, ProblemList& problems) {
  if (args.lanes.empty()) return;  // refuse_empty_words says so
  for (const std::string& lane : args.options.lanes) {
    if (!lane.empty()) continue;
    problems.add(
        fmt::format("--lanes {}: a name before and after every comma required", args.lanes),
        "e.g. --lanes fp32,tf32");
    return;
  }
}

std::vector<std::string> owners(std::string_view number) {
  std::vector<std::string> found;
  for (const Optimizer& optimizer : optimizers()) {
    for (const HyperParameter& p : optimizer.parameters) {
      if (p.name == number) found.emplace_back(optimizer.name);
    }
  }
  return found;
}

// "sgd 0.05; adam, adamw 0.001": with what it is when not given.
std::string owners_help(std::string_view number) {
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

// A number given for an optimizer that lacks it would change nothing without a word.
bool has_number(const std::string& optimizer, const std::string& number, const std::string& text,
                ProblemList& problems) {
  std::vector<std::string> names = owners(number);
  const auto is_known = [&](const Optimizer& o) { return o.name == optimizer; };
  if (std::ranges::none_of(optimizers(), is_known)) return false;  // LockstepRun says so
  if (std::ranges::count(names, optimizer) > 0) return true;
  const std::string last = names.back();
  names.pop_back();
  problems.add(fmt::format("{} {}: only {} and {} have it, --optimizer is {}", option_name(number),
                           text, join(names, ", "), last, optimizer),
               "leave it out");
  return false;
}

std::vector<std::string> globs(const std::string& text) {
  return text.empty() ? std::vector<std::string>{} : split(text, ',');
}

// Options that are small languages of their own.
void read_loop_options(ReplayArgs& args, ProblemList& problems) {
  RunOptions& o = args.options;
  collect_problems(problems, [&] {
    o.optimizer.values = parse_hyper_values("--optimizer-args", args.optimizer_args);
  });
  for (const auto& [name, text] : args.numbers) {
    if (!has_number(o.optimizer.name, name, text, problems)) continue;
    collect_problems(problems, [&] {
      const HyperValues one = parse_hyper_values(option_name(name), name + "=" + text);
      if (!o.optimizer.values.insert(*one.begin()).second) {
        problems.add(option_name(name) + ": in --optimizer-args, too", "give it once");
      }
    });
  }
  collect_problems(problems, [&] { o.schedule = parse_schedule(args.schedule); });
  for (const std::string& group : args.groups) {
    collect_problems(problems, [&] { o.groups.push_back(parse_group(group, o.optimizer)); });
  }
  o.freeze = globs(args.freeze);
  o.eval_batch_norm = globs(args.eval_batch_norm);
  o.eval_in_fp32 = args.eval_policy == "fp32";
}

// A built-in model is no file; whatever else there is under that name must be a capture, and so
// must what is written like a file's name.
bool is_capture(const std::string& model) {
  const std::span<const Model> known = models();
  return std::ranges::none_of(known, [&](const Model& m) { return m.name == model; }) &&
         (std::filesystem::exists(model) || model.find_first_of("./") != std::string::npos);
}

// What a capture says itself; given beside it, an option would change nothing without a word.
void refuse_captured(const ReplayArgs& args, const std::vector<CLI::Option*>& options,
                     ProblemList& problems) {
  for (const CLI::Option* option : options) {
    if (option->count() == 0) continue;
    problems.add(
        fmt::format("{}: capture '{}' says that itself", option->get_name(), args.options.model),
        "leave it out");
  }
}

// A run, and the capture it may be of, which outlives it.
struct Made {
  std::optional<Capture> capture;
  std::optional<LockstepRun> run;
};

// A new run, from the weights that its options name.
void make_run(Made& made, RunOptions& options) {
  std::optional<LockstepRun>& run = made.run;
  if (is_capture(options.model)) {
    made.capture.emplace(read_capture(options.model));
    run.emplace(options, *made.capture);
  } else if (options.start_from.empty()) {
    run.emplace(options);
  } else {
    const auto start = read_start(options.start_from);
    options.start_hash = start_hash(start);
    run.emplace(options, &start);
  }
}

// A run of which a file is left: from its checkpoint or, while it has none, from where it began.
void make_resumed_run(Made& made, const RunOptions& options, const std::optional<RunState>& state) {
  std::optional<LockstepRun>& run = made.run;
  if (!options.capture_hash.empty()) {
    made.capture.emplace(read_capture(options.model));
    if (made.capture->sha256 != options.capture_hash) {
      throw InputError(fmt::format("capture '{}' has SHA-256 {}, the run began with {}",
                                   options.model, made.capture->sha256, options.capture_hash),
                       "it was captured anew; start a new run");
    }
    run.emplace(options, *made.capture);
    if (state) run->restore(*state);
    return;
  }
  if (state || options.start_from.empty()) {
    run.emplace(options);
    if (state) run->restore(*state);
    return;
  }
  const auto start = read_start(options.start_from);
  const std::string hash = start_hash(start);
  if (hash != options.start_hash) {
    throw InputError(fmt::format("start-from '{}': it holds weights {}, the run began with {}",
                                 options.start_from, hash, options.start_hash),
                     "that run has gone on since; start a new run");
  }
  run.emplace(options, &start);
}

int start(ReplayArgs& args, ProblemList& problems) {
  const std::string path = args.output.empty() ? kDefaultOutput : args.output;
  check_output(path, args.overwrite ? Replace::kAny : Replace::kNothing,
               fmt::format("-o OTHER, --overwrite, or `replay --resume {}` to go on with it", path),
               problems);
  const std::string& start_from = args.options.start_from;
  collect_problems(problems, [&] {
    if (start_from.empty() || !starts_from_run(start_from, path)) return;
    problems.add(fmt::format("--start-from {}: a new run in {} deletes it", start_from, path),
                 "choose another -o, or copy the checkpoint away first");
  });
  args.options.mode = args.mode == "synced" ? LaneMode::kSynced : LaneMode::kFree;
  args.options.backward_per_loss = args.backward == kBackwardPerLoss;
  Made made;  // finds every other mistake before a file is touched
  if (args.options.model.empty()) {
    problems.add("MODEL: missing", "`lockstep list models` names them; or name a capture");
  } else if (std::ranges::count(args.options.lanes, "") == 0) {
    collect_problems(problems, [&] { make_run(made, args.options); });
  }
  problems.throw_if_any();
  LockstepRun& run = *made.run;
  int code = kExitFine;
  {
    RunFileWriter writer(path, command_line(), args.overwrite);
    const auto progress = make_progress(args, 0, run.description().options->steps);
    code = execute(run, writer, progress.get(), path);
  }
  if (code != kExitUsage) print_end(path, code == kExitFine, args.quiet);
  return code;
}

// Nothing is left to record: not a step, not the sums over the last steps, not the evaluation at
// the end (a run may be killed between any two of them).
bool is_complete(const RunFile& run) {
  const int64_t steps = run.options().steps;
  if (run.steps() < steps) return false;
  for (int lane = 0; lane < static_cast<int>(run.lanes().size()); ++lane) {
    const std::vector<Evaluation> evaluations = run.evaluations(lane);
    const bool is_captured = !run.options().capture_hash.empty();  // nothing is held out
    if (is_captured && run.lanes()[static_cast<size_t>(lane)].name == kCapturedLane) continue;
    if (!is_captured && (evaluations.empty() || evaluations.back().steps_done < steps)) {
      return false;
    }
    if (run.total_histogram_steps(lane) < steps) return false;
  }
  return true;
}

// What a resumed run does is what its file says; options given beside --resume would be ignored, so
// they are refused (refuse_fixed).
int resume(const ReplayArgs& args, const ProblemList& problems) {
  problems.throw_if_any();
  if (!args.resume_from.empty() && !args.output.empty() && args.resume_from != args.output) {
    throw InputError(fmt::format("--resume {} and -o {}: a run goes on in its own file",
                                 args.resume_from, args.output),
                     "give one of them");
  }
  std::string path = args.resume_from.empty() ? args.output : args.resume_from;
  if (path.empty()) path = kDefaultOutput;
  RunOptions options;
  std::optional<RunState> state;
  bool complete = false;
  {
    const RunFile run(path,
                      /*allow_empty=*/true);  // a run killed before its first step goes on too
    options = run.options();
    complete = is_complete(run);
    if (!complete) state = read_checkpoint(path, run.steps());
  }
  if (!args.options.model.empty() && args.options.model != options.model) {
    throw InputError(
        fmt::format("model '{}': {} is a run of '{}'", args.options.model, path, options.model));
  }
  if (complete) {
    if (!args.quiet) {
      fmt::print(
          "{} is complete: all {} steps are recorded, nothing is left to do. Next:\n"
          "  lockstep report {}\n",
          path, options.steps, shell_quoted(path));
    }
    return kExitFine;
  }
  const int64_t from = state ? state->steps_done : 0;
  Made made;
  make_resumed_run(made, options, state);
  LockstepRun& run = *made.run;
  int code = kExitFine;
  {
    const auto writer = RunFileWriter::resume(path, from);
    const auto progress = make_progress(args, from, options.steps);
    code = execute(run, *writer, progress.get(), path);
  }
  if (code != kExitUsage) print_end(path, code == kExitFine, args.quiet);
  return code;
}

void refuse_fixed(const std::vector<CLI::Option*>& options) {
  ProblemList problems("replay --resume");
  for (const CLI::Option* option : options) {
    if (option->count() == 0) continue;
    problems.add(option->get_name() + ": a resumed run goes on as its file says", "leave it out");
  }
  problems.throw_if_any();
}

}  // namespace

std::function<int()> declare_replay(CLI::App& app) {
  auto args = std::make_shared<ReplayArgs>();
  RunOptions& o = args->options;
  o.model.clear();
  // What a run file fixes for good; the rest may differ when a run is resumed.
  auto fixed = std::make_shared<std::vector<CLI::Option*>>();
  const auto add = [&app, fixed](const char* group, const char* name, auto& value, const char* type,
                                 const char* help) {
    CLI::Option* option = app.add_option(name, value, help)->type_name(type)->group(group);
    fixed->push_back(option);
    return option;
  };
  const ArgumentChecks checks("replay");
  const auto whole = [&](const char* in, const char* name, auto& value, uint64_t low, uint64_t high,
                         const char* help) {
    checks.whole(add(in, name, value, "N", help)->capture_default_str(), low, high);
  };
  app.add_option("MODEL", o.model,
                 "a built-in model (`lockstep list models`), or a capture: a file that "
                 "lockstep_capture wrote")
      ->type_name("");
  const char* group = "What to run";
  add(group, "--data", o.data, "SPEC", "see `lockstep list data` [the model's default]");
  checks.named_numbers(add(group, "--size", args->sizes, "NAME=X,...",
                           "sizes, e.g. layers=2,width=64: see `lockstep list models`"),
                       o.sizes);
  add(group, "--lanes", args->lanes, "A,B,...",
      "POLICY[:VERSION][@TARGET]; fp64: truth; twin: noise")
      ->capture_default_str();
  whole(group, "--steps", o.steps, 1, kLargestCount, "training steps; of a capture: all it has");
  whole(group, "--batch", o.batch, 1, kLargestBatch, "examples per step");
  fixed->push_back(
      app.add_flag("--cycle", o.cycle, "of a capture: behind its last step its first one follows")
          ->group(group));
  checks.one_of(
      add(group, "--mode", args->mode, "free|synced", "whose weights a lane's step starts from")
          ->capture_default_str(),
      {"free", "synced"});
  whole(group, "--seed", o.seed, 0, UINT64_MAX, "of weights, batches and noise");

  group = "Optimizer";
  add(group, "--optimizer", o.optimizer.name, "NAME", "see `lockstep list optimizers`")
      ->capture_default_str();
  for (const std::string_view number : kNumberOptions) {
    const std::string help = owners_help(number);
    CLI::Option* option = app.add_option_function<std::string>(
        option_name(number),
        [args, number](const std::string& text) { args->numbers[std::string(number)] = text; },
        help);
    option->type_name("X")->group(group);
    checks.number(option);
    fixed->push_back(option);
  }
  add(group, "--optimizer-args", args->optimizer_args, "K=V,...",
      "any of its numbers, e.g. nesterov=1");
  add(group, "--schedule", args->schedule, "NAME[:K=V,...]", "see `lockstep list schedules`")
      ->capture_default_str();
  add(group, "--group", args->groups, "LAYERS:K=V,...",
      "layers with numbers or an optimizer= of their own; repeatable")
      ->allow_extra_args(false);

  group = "The loop";
  whole(group, "--accumulate", o.accumulate, 1, kLargestBatch, "micro-batches per step");
  fixed->push_back(declare_backward(app, checks, args->backward)->group(group));
  whole(group, "--workers", o.workers, 1, kMostWorkers,
        "data-parallel workers, each with its part of the batch");
  checks.number(add(group, "--clip-norm", o.clip_norm, "X", "largest norm of all gradients; 0: any")
                    ->capture_default_str());
  checks.number(add(group, "--clip-value", o.clip_value, "X", "largest gradient element; 0: any")
                    ->capture_default_str());
  add(group, "--freeze", args->freeze, "GLOB,...", "layers whose parameters stay");
  add(group, "--eval-batch-norm", args->eval_batch_norm, "GLOB,...",
      "batch_norm layers in evaluation mode");
  checks.number(add(group, "--batch-norm-eps", o.batch_norm_eps, "X",
                    "eps of every batch_norm; default: the model's own"));
  add(group, "--start-from", o.start_from, "RUN.state[:LANE]", "weights of another run's lane");
  checks.one_of(add(group, "--eval-policy", args->eval_policy, "own|fp32",
                    "what held-out evaluations compute in")
                    ->capture_default_str(),
                {"own", "fp32"});

  group = "What to record";
  whole(group, "--eval-every", o.eval_every, 0, kLargestCount,
        "steps between held-out evaluations; 0: at the end");
  whole(group, "--histogram-every", o.histogram_every, 1, kLargestCount,
        "steps between full histograms");
  whole(group, "--sums-every", o.sums_every, 0, kLargestCount,
        "steps between exact recomputations of 64 outputs of every sum of products; 0: never");
  whole(group, "--checkpoint-every", o.checkpoint_every, 1, kLargestCount,
        "steps between checkpoints");
  fixed->push_back(app.add_flag("--overwrite", args->overwrite, "replace the run file if it exists")
                       ->group(group));
  app.add_option("-o,--output", args->output, fmt::format("the run file [{}]", kDefaultOutput))
      ->type_name("RUN")
      ->group(group);
  CLI::Option* resumed =
      app.add_option("--resume", args->resume_from, "go on with this run (or -o's), as it began")
          ->type_name("[RUN]")
          ->expected(0, 1)
          ->group(group);

  group = "This machine (changes no number)";
  checks.whole(
      app.add_option("--threads", args->threads, "1 to 256 [all]")->type_name("N")->group(group), 1,
      kMostThreads);
  app.add_option("--simd", args->simd, "scalar, avx2 or avx512 [the fastest here]")
      ->type_name("NAME")
      ->group(group);
  app.add_flag("--quiet", args->quiet, "no progress, no summary")->group(group);
  app.footer(
      "--mode free: every lane keeps its own weights, what training would do; synced: every step\n"
      "starts from the reference's weights, what one step loses. The fp32 reference always runs.\n"
      "Ctrl-C ends after the step in progress with a whole run file (exit code 130).\n"
      "Example:\n  lockstep replay lenet --data mnist:DIR --steps 400 \\\n"
      "    --lanes fp32,torch-autocast-fp16,torch-autocast-bf16,tf32,pure-fp16 -o run.h5");
  // What only a built-in model takes, and only a capture.
  std::vector<CLI::Option*> of_models;
  for (const char* name : {"--data", "--size", "--batch", "--optimizer", "--optimizer-args",
                           "--schedule", "--group", "--accumulate", "--workers", "--clip-norm",
                           "--clip-value", "--start-from", "--eval-every", "--eval-policy"}) {
    of_models.push_back(app.get_option(name));
  }
  for (const std::string_view number : kNumberOptions) {
    of_models.push_back(app.get_option(option_name(number)));
  }
  CLI::Option* steps = app.get_option("--steps");
  return [args, fixed, resumed, checks, of_models, steps, &app] {
    ProblemList& problems = checks.problems();
    const bool resuming = resumed->count() > 0;
    args->options.lanes = split(args->lanes, ',');
    if (resuming) refuse_fixed(*fixed);
    if (!resuming && is_capture(args->options.model)) {
      refuse_captured(*args, of_models, problems);
      if (steps->count() == 0) args->options.steps = 0;  // all of them
    } else if (args->options.cycle) {
      problems.add("--cycle: only a capture has an end to begin again behind", "leave it out");
    }
    if (!resuming) check_lanes(*args, problems);
    if (!resuming) read_loop_options(*args, problems);
    if (args->threads != 0) set_thread_count(args->threads);
    if (!args->simd.empty()) collect_problems(problems, [&] { select_kernels(args->simd); });
    return resuming ? resume(*args, problems) : start(*args, problems);
  };
}

}  // namespace lockstep
