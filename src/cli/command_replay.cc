// lockstep replay: trains the lanes, records them, prints the summary.
#include <memory>

#include "emulation/kernels/active_kernels.h"
#include "src/cli/command.h"
#include "src/cli/replay_arguments.h"
#include "src/cli/replay_run.h"
#include "src/core/parallel.h"
#include "src/core/text.h"

namespace lockstep {

std::function<int()> declare_replay(CLI::App& app) {
  auto args = std::make_shared<ReplayArgs>();
  const ArgumentChecks checks("replay");
  const ReplayOptions options = declare_replay_options(app, args, checks);
  return [args, checks, options] {
    ProblemList& problems = checks.problems();
    const bool resuming = options.resume->count() > 0;
    args->options.lanes = split(args->lanes, ',');
    if (resuming) {
      refuse_fixed(options);
    } else {
      read_replay_options(*args, options, problems);
    }
    if (args->threads != 0) set_thread_count(args->threads);
    if (!args->simd.empty()) collect_problems(problems, [&] { select_kernels(args->simd); });
    return resuming ? resume_run(*args, problems) : start_run(*args, problems);
  };
}

}  // namespace lockstep
