// lockstep replay: trains the lanes, records them, prints the summary.
#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
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

// After a failed write the file must not even be closed: no destructor may run.
[[noreturn]] void leave(const WriteError& error, const std::string& path) {
  fmt::print(stderr,
             "lockstep: {}\nThe steps recorded before are whole. With room on the disk:\n"
             "  lockstep replay --resume {}\n",
             error.what(), path);
  std::fflush(nullptr);
  std::_Exit(kExitUsage);
}

int execute(LockstepRun& run, RunFileWriter& writer, Progress* progress, const std::string& path) {
  run.add_observer(&writer);
  if (progress != nullptr) run.add_observer(progress);
  try {
    const bool finished = run.run(catch_stop_signals());
    return finished ? kExitFine : kExitSignalBase + stop_signal();
  } catch (const WriteError& error) {
    if (progress != nullptr) progress->on_finish();
    leave(error, path);
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
  print_end(path, code == kExitFine, args.quiet);
  return code;
}

// What a resumed run does is what its file says; options given beside --resume would be ignored, so
// they are refused (see declare_replay).
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
    const RunFile run(path);
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
  print_end(path, code == kExitFine, args.quiet);
  return code;
}

}  // namespace

std::function<int()> declare_replay(CLI::App& app) {
  auto args = std::make_shared<ReplayArgs>();
  RunOptions& o = args->options;
  o.model.clear();
  const std::string kRun = "What to run", kOptimizer = "Optimizer", kRecord = "What to record",
                    kMachine = "This machine (changes no number)";
  std::vector<CLI::Option*> decided_by_file = {
      app.add_option("MODEL", o.model, "a built-in model: see `lockstep list models`"),
      app.add_option("--data", o.data,
                     "synthetic[:COUNT], mnist:DIR, fashion-mnist:DIR, cifar10:DIR "
                     "[the model's default]"),
      app.add_option(
             "--lanes", o.lanes,
             "comma-separated POLICY[:VERSION][@TARGET]: presets or my.toml, and fp64 (truth), "
             "twin (one-ulp noise); fp32 always runs")
          ->delimiter(',')
          ->capture_default_str(),
      app.add_option("--steps", o.steps, "training steps")->capture_default_str(),
      app.add_option("--batch", o.batch, "examples per step")->capture_default_str(),
      app.add_option("--mode", args->mode,
                     "free: every lane keeps its own weights; synced: every step starts from the "
                     "reference's")
          ->check(CLI::IsMember({"free", "synced"}))
          ->capture_default_str(),
      app.add_option("--seed", o.seed, "of weights, batches, noise")->capture_default_str()};
  for (CLI::Option* option : decided_by_file) option->group(kRun);
  const std::vector<CLI::Option*> optimizer = {
      app.add_option("--optimizer", o.optimizer.name, "sgd, adam or adamw")->capture_default_str(),
      app.add_option("--lr", o.optimizer.lr, "learning rate")->capture_default_str(),
      app.add_option("--momentum", o.optimizer.momentum, "sgd")->capture_default_str(),
      app.add_option("--beta1", o.optimizer.beta1, "adam, adamw")->capture_default_str(),
      app.add_option("--beta2", o.optimizer.beta2, "adam, adamw")->capture_default_str(),
      app.add_option("--eps", o.optimizer.eps, "adam, adamw")->capture_default_str(),
      app.add_option("--weight-decay", o.optimizer.weight_decay, "")->capture_default_str()};
  for (CLI::Option* option : optimizer) option->group(kOptimizer);
  const std::vector<CLI::Option*> record = {
      app.add_option("--eval-every", o.eval_every,
                     "held-out evaluation every N steps; 0: at the end")
          ->capture_default_str(),
      app.add_option("--histogram-every", o.histogram_every,
                     "full exponent histograms every N steps")
          ->capture_default_str(),
      app.add_option("--checkpoint-every", o.checkpoint_every, "checkpoints every N steps")
          ->capture_default_str()};
  for (CLI::Option* option : record) option->group(kRecord);
  decided_by_file.insert(decided_by_file.end(), optimizer.begin(), optimizer.end());
  decided_by_file.insert(decided_by_file.end(), record.begin(), record.end());
  app.add_option("-o,--output", args->output, fmt::format("the run file [{}]", kDefaultOutput))
      ->group(kRecord);
  CLI::Option* overwrite =
      app.add_flag("--overwrite", args->overwrite, "replace the run file if it exists")
          ->group(kRecord);
  CLI::Option* resume_flag =
      app.add_option("--resume", args->resume_from,
                     "go on with this run file (or the one named by -o) from its last checkpoint; "
                     "everything else is as the file says")
          ->type_name("RUN")
          ->expected(0, 1)
          ->group(kRecord)
          ->excludes(overwrite);
  // MODEL may be repeated: it is compared with the file's.
  for (CLI::Option* option : decided_by_file) {
    if (!option->get_positional()) resume_flag->excludes(option);
  }
  app.add_option("--threads", args->threads, "threads [all]")
      ->check(CLI::Range(1, 256))
      ->group(kMachine);
  app.add_option("--simd", args->simd, "scalar, avx2 or avx512 [the fastest here]")
      ->group(kMachine);
  app.add_flag("--quiet", args->quiet, "no progress, no summary")->group(kMachine);
  app.footer(
      "Example:\n  lockstep replay lenet --data mnist:DIR --steps 400 \\\n"
      "    --lanes fp32,torch-autocast-fp16,torch-autocast-bf16,tf32,pure-fp16 -o run.h5\n"
      "Ctrl-C ends after the step in progress with a whole run file (exit code 130).");
  return [args, resume_flag] {
    if (args->threads > 0) set_thread_count(args->threads);
    if (!args->simd.empty()) select_kernels(args->simd);
    return resume_flag->count() > 0 ? resume(*args) : start(*args);
  };
}

}  // namespace lockstep
