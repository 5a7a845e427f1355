// lockstep replay: trains the lanes, records them, prints the summary.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>

#include "reports/section.h"
#include "src/cli/arguments.h"
#include "src/cli/command.h"
#include "src/cli/progress.h"
#include "src/cli/stop_signal.h"
#include "src/core/error.h"
#include "src/core/parallel.h"
#include "src/core/text.h"
#include "src/record/run_file.h"
#include "src/train/lockstep.h"

namespace lockstep {
namespace {

constexpr char kDefaultOutput[] = "run.h5";
constexpr uint64_t kMostThreads = 256;

struct ReplayArgs {
  RunOptions options;
  std::string mode = "free", lanes = "fp32", sizes, output, resume_from, simd;
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

// An optimizer's numbers given for another one, or a lane without a name, would change nothing
// without a word.
void check_combinations(const ReplayArgs& args, const CLI::App& app, ProblemList& problems) {
  struct Owner {
    const char *option, *optimizers;
    bool sgd;
  };
  constexpr Owner kOwners[] = {{"--momentum", "sgd has it", true},
                               {"--beta1", "adam and adamw have it", false},
                               {"--beta2", "adam and adamw have it", false},
                               {"--eps", "adam and adamw have it", false}};
  const std::string& optimizer = args.options.optimizer.name;
  const bool sgd = optimizer == "sgd";
  for (const Owner& owner : kOwners) {
    const CLI::Option* option = app.get_option(owner.option);
    if (option->count() == 0 || owner.sgd == sgd) continue;
    problems.add(fmt::format("{} {}: only {}, --optimizer is {}", owner.option,
                             option->results().front(), owner.optimizers, optimizer),
                 "leave it out");
  }
  if (args.lanes.empty()) return;  // refuse_empty_words says so
  for (const std::string& lane : args.options.lanes) {
    if (!lane.empty()) continue;
    problems.add(
        fmt::format("--lanes {}: a name before and after every comma required", args.lanes),
        "e.g. --lanes fp32,tf32");
    return;
  }
}

int start(ReplayArgs& args, ProblemList& problems) {
  const std::string path = args.output.empty() ? kDefaultOutput : args.output;
  check_output(path, args.overwrite ? Replace::kAny : Replace::kNothing,
               fmt::format("-o OTHER, --overwrite, or `replay --resume {}` to go on with it", path),
               problems);
  args.options.mode = args.mode == "synced" ? LaneMode::kSynced : LaneMode::kFree;
  std::optional<LockstepRun> made;  // finds every other mistake before a file is touched
  if (args.options.model.empty()) {
    problems.add("MODEL: missing", "`lockstep list models` names them");
  } else if (std::ranges::count(args.options.lanes, "") == 0) {
    collect_problems(problems, [&] { made.emplace(args.options); });
  }
  problems.throw_if_any();
  LockstepRun& run = *made;
  int code = kExitFine;
  {
    RunFileWriter writer(path, command_line(), args.overwrite);
    const auto progress = make_progress(args, 0, args.options.steps);
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
    if (evaluations.empty() || evaluations.back().steps_done < steps) return false;
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
  LockstepRun run(options);
  if (state) run.restore(*state);
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
  const auto number = [&](const char* name, double& value, const char* help) {
    checks.number(add("Optimizer", name, value, "X", help)->capture_default_str());
  };
  app.add_option("MODEL", o.model, "a built-in model: see `lockstep list models`")->type_name("");
  const char* group = "What to run";
  add(group, "--data", o.data, "SPEC", "see `lockstep list data` [the model's default]");
  checks.named_numbers(add(group, "--size", args->sizes, "NAME=X,...",
                           "sizes, e.g. layers=2,width=64: see `lockstep list models`"),
                       o.sizes);
  add(group, "--lanes", args->lanes, "A,B,...",
      "POLICY[:VERSION][@TARGET]; fp64: truth; twin: noise")
      ->capture_default_str();
  whole(group, "--steps", o.steps, 1, kLargestCount, "training steps");
  whole(group, "--batch", o.batch, 1, kLargestBatch, "examples per step");
  checks.one_of(
      add(group, "--mode", args->mode, "free|synced", "whose weights a lane's step starts from")
          ->capture_default_str(),
      {"free", "synced"});
  whole(group, "--seed", o.seed, 0, UINT64_MAX, "of weights, batches and noise");

  OptimizerSpec& opt = o.optimizer;
  add("Optimizer", "--optimizer", opt.name, "NAME", "sgd, adam or adamw")->capture_default_str();
  number("--lr", opt.lr, "learning rate");
  number("--momentum", opt.momentum, "sgd");
  number("--beta1", opt.beta1, "adam, adamw");
  number("--beta2", opt.beta2, "adam, adamw");
  number("--eps", opt.eps, "adam, adamw");
  number("--weight-decay", opt.weight_decay, "adamw: decoupled");

  group = "What to record";
  whole(group, "--eval-every", o.eval_every, 0, kLargestCount,
        "steps between held-out evaluations; 0: at the end");
  whole(group, "--histogram-every", o.histogram_every, 1, kLargestCount,
        "steps between full histograms");
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
  return [args, fixed, resumed, checks, &app] {
    ProblemList& problems = checks.problems();
    const bool resuming = resumed->count() > 0;
    args->options.lanes = split(args->lanes, ',');
    if (resuming) refuse_fixed(*fixed);
    if (!resuming) check_combinations(*args, app, problems);
    if (args->threads != 0) set_thread_count(args->threads);
    if (!args->simd.empty()) collect_problems(problems, [&] { select_kernels(args->simd); });
    return resuming ? resume(*args, problems) : start(*args, problems);
  };
}

}  // namespace lockstep
