// lockstep replay: trains the lanes, records them, prints the summary.
#include <memory>

#include "emulation/kernels/active_kernels.h"
#include "src/cli/arguments/replay_arguments.h"
#include "src/cli/command.h"
#include "src/cli/replay_run.h"
#include "src/core/parallel.h"

namespace lockstep {

std::function<int()> declare_replay(CLI::App& app) {
  auto args = std::make_shared<ReplayArgs>();
  const ArgumentChecks checks("replay");
  const ReplayOptions options = declare_replay_options(app, args, checks);
  const std::string group = "What to record";
  app.add_option("--save-values", args->save_values,
                 "the values of one site in one step, for NumPy; needs --at")
      ->type_name("FILE.npy")
      ->group(group);
  app.add_option("--at", args->at, "\"STEP LANE SITE\": a site's label in a report, or #ID")
      ->type_name("PLACE")
      ->group(group);
  return [args, checks, options] {
    ProblemList& problems = checks.problems();
    const bool resuming = options.resume->count() > 0;
    if (args->save_values.empty() != args->at.empty()) {
      problems.add("--save-values and --at: both required",
                   "--save-values v.npy --at \"3 pure-fp16 conv1 conv2d activation output\"");
    } else if (resuming && !args->at.empty()) {
      problems.add("--save-values: only for a new run", "replay it to another -o");
    }
    if (resuming) {
      refuse_fixed(options);
    } else {
      read_replay_options(*args, options, problems);
    }
    if (args->threads != 0) set_thread_count(args->threads);
    if (!args->simd.empty()) collect_problems(problems, [&] { select_kernels(args->simd); });
    collect_problems(problems, [&] { select_software_device(args->software_device); });
    return resuming ? resume_run(*args, problems) : start_run(*args, problems);
  };
}

}  // namespace lockstep
