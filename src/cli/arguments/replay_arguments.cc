// See replay_arguments.h.
#include "src/cli/arguments/replay_arguments.h"

#include <fmt/format.h>

#include <algorithm>

#include "emulation/kernels/active_kernels.h"
#include "src/cli/arguments/capture_argument.h"
#include "src/train/run_option_rows.h"
#include "src/train/run_option_syntax.h"
#include "src/train/run_option_text.h"

namespace lockstep {
namespace {

std::string software_device_help() {
  std::string names;
  for (const SoftwareDevice& device : software_devices()) {
    names += fmt::format("{}{} ({})", names.empty() ? "" : ", ", device.name, device.help);
  }
  return names + ": forms the sums of products of software lanes [the CPU]";
}

void check_seeds(const RunOptions& o, ProblemList& problems) {
  if (o.seeds <= 1) return;
  const std::string_view seeds = option_name(&RunOptions::seeds);
  const std::string given = fmt::format("{} {}", seeds, o.seeds);
  if (is_capture(o.model)) {
    problems.add(given + ": a capture has the weights and batches of one run",
                 fmt::format("leave {} out, or capture the loop again with another seed", seeds));
  }
  if (o.mode == LaneMode::kSynced) {
    problems.add(
        given + ": in synced mode no outcome is judged, which is what seeds are for",
        fmt::format("leave {} out, or use {} free", seeds, option_name(&RunOptions::mode)));
  }
  if (o.seed > UINT64_MAX - static_cast<uint64_t>(o.seeds - 1)) {
    const std::string_view seed = option_name(&RunOptions::seed);
    problems.add(
        fmt::format("{} {} {}: the last seed is beyond {}", seed, o.seed, given, UINT64_MAX),
        fmt::format("choose a smaller {}", seed));
  }
}

// The option whose row is read by `parse`.
const CLI::Option& option_of(const ReplayOptions& options, decltype(RunOption::parse) parse) {
  return *std::ranges::find(options.of_run, parse, [](auto& one) {
            return one.row->parse;
          })->option;
}

}  // namespace

ReplayOptions declare_replay_options(CLI::App& app, std::shared_ptr<ReplayArgs> args,
                                     const ArgumentChecks& checks) {
  ReplayOptions options;
  args->options.model.clear();
  app.add_option("MODEL", args->options.model,
                 "a built-in model (`lockstep list models`), a capture file written by "
                 "lockstep_capture, or its folder of parts")
      ->type_name("");
  for (const RunOption& row : run_options()) {
    if (row.option.empty()) continue;
    options.of_run.push_back(declare_option(app, row, args->options));
    options.of_run.back().option->group(std::string(row.group));
    if (row.of == OptionOf::kModels) options.of_models.push_back(options.of_run.back());
  }
  std::string group = "What to record";
  options.overwrite = app.add_flag("--overwrite", args->overwrite,
                                   "replace the run file if it exists (never a capture)")
                          ->group(group);
  app.add_option("-o,--output", args->output, fmt::format("the run file [{}]", kDefaultRunFile))
      ->type_name("RUN")
      ->group(group);
  options.resume =
      app.add_option("--resume", args->resume_from,
                     "continue this run (or the one of -o) with the options it began with")
          ->type_name("[RUN]")
          ->expected(0, 1)
          ->group(group);

  group = "This machine (no effect on results)";
  declare_threads(app, checks, args->threads)->group(group);
  app.add_option("--simd", args->simd, "scalar, avx2 or avx512 [the fastest here]")
      ->type_name("NAME")
      ->group(group);
  app.add_option("--software-device", args->software_device, software_device_help())
      ->type_name("NAME")
      ->group(group);
  app.add_flag("--quiet", args->quiet, "no progress, no summary")->group(group);
  app.footer(
      "--mode free: every lane keeps its own weights, as in training; synced: every step starts\n"
      "from the reference's weights and shows what one step loses. The fp32 reference always "
      "runs.\n"
      "--decisions recorded: every lane follows what the captured steps chose; own: lanes choose "
      "by\n"
      "their own values where the result stays inside the graph (topk, sort, argmax).\n"
      "Twins run by default where an outcome is judged: in free mode, with a lane besides fp32 and "
      "fp64.\nWithout twins a lane of a single seed is never called worse. --seeds is for built-in "
      "models in\nfree mode: each lane is judged by its mean gap to fp32 of the same seed.\n"
      "Ctrl-C stops after the step in progress and leaves an intact run file (exit code 130).\n"
      "Example:\n  lockstep replay lenet --data mnist:DIR --steps 400 \\\n"
      "    --lanes fp32,torch-autocast-fp16,torch-autocast-bf16,tf32,pure-fp16 -o run.h5");
  return options;
}

void read_replay_options(ReplayArgs& args, const ReplayOptions& options, ProblemList& problems) {
  RunOptions& o = args.options;
  if (is_capture(o.model)) {
    o.steps = 0;  // all of them
    refuse_captured(o.model, options.of_models, problems);
  }
  read_options(options.of_run, o, problems);
  const CLI::Option& level = option_of(options, parse_statistics);
  collect_problems(problems, [&] {
    finish_statistics(level.count() > 0 ? level.as<std::string>() : "", o.measuring);
  });
  check_seeds(o, problems);
  if (option_of(options, parse_twins).count() == 0 && needs_twin(o)) add_twins(o, args.twins);
}

void refuse_fixed(const ReplayOptions& options) {
  ProblemList problems("replay --resume");
  const auto refuse = [&](const CLI::Option* option) {
    if (option->count() == 0) return;
    problems.add(option->get_name() + ": a resumed run keeps the options in its file",
                 "leave it out");
  };
  for (const auto& [row, option] : options.of_run) refuse(option);
  refuse(options.overwrite);
  problems.throw_if_any();
}

}  // namespace lockstep
