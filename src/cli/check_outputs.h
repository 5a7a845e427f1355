// What `check` writes besides its text: files for programs and CI systems.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "analysis/check/check_result.h"
#include "src/cli/command_files.h"
#include "src/core/error.h"

namespace lockstep {

// Paths; empty: not asked for; "-": standard output, instead of the text.
struct CheckOutputs {
  std::string json, junit, markdown, sarif, report;
  bool github = false;
};

void declare_check_outputs(CLI::App& app, CheckOutputs& outputs);
// Adds a problem for each output that cannot be written, that would replace one of `inputs` or
// another output, or that --exact does not have.
void check_outputs(const CheckOutputs& outputs, const std::vector<CommandInput>& inputs,
                   bool is_exact, ProblemList& problems);
// Writes them all, and the text to standard output. An error has no text: its message goes to
// standard error.
void write_check_outputs(const CheckOutputs& outputs, const CheckResult& result);

}  // namespace lockstep
