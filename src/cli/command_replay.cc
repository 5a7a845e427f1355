// lockstep replay: trains the lanes, records them, prints the summary.
#include <fmt/format.h>

#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>

#include "reports/section.h"
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

struct ReplayArgs {
  RunOptions options;
  std::string mode = "free", output, resume_from, simd;
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
  if (!quiet) fmt::print("\n{}\n", report_text(read_report(run), /*summary_only=*/true));
  fmt::print("Recorded {} steps in {}. Next:\n  lockstep report {}\n", run.steps(), path, path);
}

int report_write_error(const WriteError& error, const std::string& path) {
  fmt::print(stderr,
             "lockstep: {}\nThe steps recorded before are whole. With room on the disk:\n"
             "  lockstep replay --resume {}\n",
             error.what(), path);
  return kExitUsage;
}

int execute(LockstepRun& run, RunFileWriter& writer, Progress* progress, const std::string& path) {
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

int start(ReplayArgs& args) {
  if (args.options.model.empty()) {
    throw InputError("replay: MODEL is missing", "`lockstep list models` names them");
  }
  const std::string path = args.output.empty() ? kDefaultOutput : args.output;
  if (std::filesystem::exists(path) && !args.overwrite) {
    throw InputError(
        fmt::format("{}: exists, and nothing is overwritten unasked", path),
        fmt::format("-o OTHER, --overwrite, or `replay --resume {}` to go on with it", path));
  }
  args.options.mode = args.mode == "synced" ? LaneMode::kSynced : LaneMode::kFree;
  LockstepRun run(args.options);  // finds every mistake before a file is touched
  int code = kExitFine;
  {
    RunFileWriter writer(path, command_line(), args.overwrite);
    const auto progress = make_progress(args, 0, args.options.steps);
    code = execute(run, writer, progress.get(), path);
  }
  if (code != kExitUsage) print_end(path, code == kExitFine, args.quiet);
  return code;
}

// What a resumed run does is what its file says; options given beside --resume would be ignored, so
// they are refused (refuse_fixed).
int resume(const ReplayArgs& args) {
  if (!args.resume_from.empty() && !args.output.empty() && args.resume_from != args.output) {
    throw InputError(fmt::format("--resume {} and -o {}: a run goes on in its own file",
                                 args.resume_from, args.output),
                     "give one of them");
  }
  std::string path = args.resume_from.empty() ? args.output : args.resume_from;
  if (path.empty()) path = kDefaultOutput;
  RunOptions options;
  std::optional<RunState> state;
  {
    const RunFile run(path,
                      /*allow_empty=*/true);  // a run killed before its first step goes on too
    options = run.options();
    state = read_checkpoint(path, run.steps());
  }
  if (!args.options.model.empty() && args.options.model != options.model) {
    throw InputError(
        fmt::format("model '{}': {} is a run of '{}'", args.options.model, path, options.model));
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
  app.add_option("MODEL", o.model, "a built-in model: see `lockstep list models`")->type_name("");
  const char* group = "What to run";
  add(group, "--data", o.data, "SPEC", "see `lockstep list data` [the model's default]");
  add(group, "--lanes", o.lanes, "A,B,...", "POLICY[:VERSION][@TARGET]; fp64: truth; twin: noise")
      ->delimiter(',')
      ->capture_default_str();
  add(group, "--steps", o.steps, "N", "training steps")->capture_default_str();
  add(group, "--batch", o.batch, "N", "examples per step")->capture_default_str();
  add(group, "--mode", args->mode, "free|synced", "whose weights a lane's step starts from")
      ->check(CLI::IsMember({"free", "synced"}).description(""))
      ->capture_default_str();
  add(group, "--seed", o.seed, "N", "of weights, batches and noise")->capture_default_str();

  group = "Optimizer";
  OptimizerSpec& opt = o.optimizer;
  add(group, "--optimizer", opt.name, "NAME", "sgd, adam or adamw")->capture_default_str();
  add(group, "--lr", opt.lr, "X", "learning rate")->capture_default_str();
  add(group, "--momentum", opt.momentum, "X", "sgd")->capture_default_str();
  add(group, "--beta1", opt.beta1, "X", "adam, adamw")->capture_default_str();
  add(group, "--beta2", opt.beta2, "X", "adam, adamw")->capture_default_str();
  add(group, "--eps", opt.eps, "X", "adam, adamw")->capture_default_str();
  add(group, "--weight-decay", opt.weight_decay, "X", "adamw: decoupled")->capture_default_str();

  group = "What to record";
  add(group, "--eval-every", o.eval_every, "N", "steps between held-out evaluations; 0: at the end")
      ->capture_default_str();
  add(group, "--histogram-every", o.histogram_every, "N", "steps between full histograms")
      ->capture_default_str();
  add(group, "--checkpoint-every", o.checkpoint_every, "N", "steps between checkpoints")
      ->capture_default_str();
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
  app.add_option("--threads", args->threads, "1 to 256 [all]")->type_name("N")->group(group);
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
  return [args, fixed, resumed] {
    if (resumed->count() > 0) refuse_fixed(*fixed);
    if (args->threads != 0) set_thread_count(args->threads);
    if (!args->simd.empty()) select_kernels(args->simd);
    return resumed->count() > 0 ? resume(*args) : start(*args);
  };
}

}  // namespace lockstep
