// The options of `lockstep replay`.
#pragma once

#include <CLI/CLI.hpp>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "src/cli/arguments/arguments.h"
#include "src/train/run_options.h"

namespace lockstep {

inline constexpr char kDefaultRunFile[] = "run.h5";

struct ReplayArgs {
  RunOptions options;
  std::map<std::string, std::string> numbers;  // as given, by name
  std::vector<std::string> groups;
  std::string optimizer_args, schedule = "constant", freeze, eval_batch_norm, rewrites, changes,
                              captured_order, eval_policy = "own", statistics = "full";
  std::string mode = "free", decisions = "recorded", backward = "joint", lanes = "fp32", sizes,
              output, resume_from, simd, software_device, save_values, at;
  int64_t twins = 1;
  int threads = 0;
  bool overwrite = false, quiet = false;
};

struct ReplayOptions {
  // Options that a run file fixes; the others may differ when a run is resumed.
  std::vector<CLI::Option*> fixed;
  std::vector<CLI::Option*> of_models;  // options of built-in models only
  CLI::Option *steps, *twins, *resume, *statistics_every;
};
ReplayOptions declare_replay_options(CLI::App& app, std::shared_ptr<ReplayArgs> args,
                                     const ArgumentChecks& checks);
// For a new run: reads options with a syntax of their own, and checks those that only a built-in
// model or only a capture takes.
void read_replay_options(ReplayArgs& args, const ReplayOptions& options, ProblemList& problems);
// Throws: InputError that lists the fixed options given: --resume would ignore them.
void refuse_fixed(const ReplayOptions& options);

}  // namespace lockstep
