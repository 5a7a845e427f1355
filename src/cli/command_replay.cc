// lockstep replay: trains the lanes, records them, prints the summary.
#include <fmt/format.h>

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

struct ReplayArgs {
  RunOptions options;
  std::string mode = "free", output = "run.h5", simd;
  int threads = 0;
  bool overwrite = false, resume = false, quiet = false;
};

void print_end(const std::string& path, bool finished, bool quiet) {
  const RunFile run(path);
  if (!finished) {
    fmt::print("Stopped after step {} of {}; {} is whole. To go on:\n  lockstep replay --resume -o {}\n",
               run.steps(), run.options().steps, path, path);
    return;
  }
  if (!quiet) fmt::print("\n{}\n", report_text(read_report(run), /*summary_only=*/true));
  fmt::print("Recorded {} steps in {}. Next:\n  lockstep report {}\n", run.steps(), path, path);
}

int execute(LockstepRun& run, RunFileWriter& writer, Progress* progress, const std::string& path,
            bool quiet) {
  run.add_observer(&writer);
  if (progress != nullptr) run.add_observer(progress);
  const bool finished = run.run(catch_stop_signals());
  return finished ? kExitFine : kExitSignalBase + stop_signal();
}

std::unique_ptr<Progress> make_progress(const ReplayArgs& args, int64_t first, int64_t steps) {
  return args.quiet ? nullptr : std::make_unique<Progress>(first, steps);
}

int start(ReplayArgs& args) {
  if (args.options.model.empty()) {
    throw InputError("replay: MODEL is missing", "`lockstep list models` names them");
  }
  if (std::filesystem::exists(args.output) && !args.overwrite) {
    throw InputError(fmt::format("{}: exists, and nothing is overwritten unasked", args.output),
                     "-o OTHER, --overwrite, or --resume to go on with it");
  }
  args.options.mode = args.mode == "synced" ? LaneMode::kSynced : LaneMode::kFree;
  LockstepRun run(args.options);   // finds every mistake before a file is touched
  int code = kExitFine;
  {
    RunFileWriter writer(args.output, command_line(), args.overwrite);
    const auto progress = make_progress(args, 0, args.options.steps);
    code = execute(run, writer, progress.get(), args.output, args.quiet);
  }
  print_end(args.output, code == kExitFine, args.quiet);
  return code;
}

// What a resumed run does is what its file says; options given beside --resume would be ignored, so
// they are refused (see declare_replay).
int resume(const ReplayArgs& args) {
  RunOptions options;
  int64_t recorded = 0;
  {
    const RunFile run(args.output);
    options = run.options();
    recorded = run.steps();
  }
  if (recorded >= options.steps) {
    fmt::print("{} is complete: {} of {} steps.\n", args.output, recorded, options.steps);
    return kExitFine;
  }
  const std::optional<RunState> state = read_checkpoint(args.output, recorded);
  const int64_t from = state ? state->steps_done : 0;
  LockstepRun run(options);
  if (state) run.restore(*state);
  int code = kExitFine;
  {
    const auto writer = RunFileWriter::resume(args.output, from);
    const auto progress = make_progress(args, from, options.steps);
    code = execute(run, *writer, progress.get(), args.output, args.quiet);
  }
  print_end(args.output, code == kExitFine, args.quiet);
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
      app.add_option("--lanes", o.lanes,
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
      app.add_option("--eval-every", o.eval_every, "held-out evaluation every N steps; 0: at the end")
          ->capture_default_str(),
      app.add_option("--histogram-every", o.histogram_every, "full exponent histograms every N steps")
          ->capture_default_str(),
      app.add_option("--checkpoint-every", o.checkpoint_every, "checkpoints every N steps")
          ->capture_default_str()};
  for (CLI::Option* option : record) option->group(kRecord);
  decided_by_file.insert(decided_by_file.end(), optimizer.begin(), optimizer.end());
  decided_by_file.insert(decided_by_file.end(), record.begin(), record.end());
  app.add_option("-o,--output", args->output, "the run file")
      ->group(kRecord)
      ->capture_default_str();
  CLI::Option* overwrite =
      app.add_flag("--overwrite", args->overwrite, "replace the run file if it exists")
          ->group(kRecord);
  CLI::Option* resume_flag =
      app.add_flag("--resume", args->resume,
                   "go on with the run file named by -o, from its last checkpoint; everything else "
                   "is as the file says")
          ->group(kRecord)
          ->excludes(overwrite);
  for (CLI::Option* option : decided_by_file) resume_flag->excludes(option);
  app.add_option("--threads", args->threads, "threads [all]")
      ->check(CLI::Range(1, 256))
      ->group(kMachine);
  app.add_option("--simd", args->simd, "scalar, avx2 or avx512 [the fastest here]")->group(kMachine);
  app.add_flag("--quiet", args->quiet, "no progress, no summary")->group(kMachine);
  app.footer(
      "Example:\n  lockstep replay lenet --data mnist:DIR --steps 400 \\\n"
      "    --lanes fp32,torch-autocast-fp16,torch-autocast-bf16,tf32,pure-fp16 -o run.h5\n"
      "Ctrl-C ends after the step in progress with a whole run file (exit code 130).");
  return [args] {
    if (args->threads > 0) set_thread_count(args->threads);
    if (!args->simd.empty()) select_kernels(args->simd);
    return args->resume ? resume(*args) : start(*args);
  };
}

}  // namespace lockstep
