// The options of `lockstep replay`.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include "src/cli/arguments/arguments.h"
#include "src/train/run_options.h"

namespace lockstep {

inline constexpr char kDefaultRunFile[] = "run.h5";

struct ReplayArgs {
  RunOptions options;
  std::string output, resume_from, simd, software_device, save_values, at;
  int64_t twins = 1;  // that a replay adds by itself, where they are of use
  int threads = 0;
  bool overwrite = false, quiet = false;
};

struct ReplayOptions {
  // A run file fixes these; the others may differ when a run is resumed.
  std::vector<OptionOnLine> of_run, of_models;  // of models: a capture defines them
  CLI::Option *overwrite, *resume;
};
// The default values are those of args->options.
ReplayOptions declare_replay_options(CLI::App& app, std::shared_ptr<ReplayArgs> args,
                                     const ArgumentChecks& checks);
// For a new run: reads the options given, and refuses those that its model ignores.
void read_replay_options(ReplayArgs& args, const ReplayOptions& options, ProblemList& problems);
// Throws: InputError that lists the fixed options given: --resume would ignore them.
void refuse_fixed(const ReplayOptions& options);

}  // namespace lockstep
