// --emit KIND FILE: the files that a policy is written to for other programs.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <utility>
#include <vector>

#include "reports/emit/emit_kinds.h"
#include "src/cli/command_files.h"
#include "src/core/error.h"

namespace lockstep {

// A kind and its file, in the order of the command line.
using EmitWords = std::vector<std::pair<std::string, std::string>>;

CLI::Option* declare_emit(CLI::App& app, EmitWords& words);
// Adds a problem for every kind, name or file that cannot be.
void check_emit(const EmitWords& words, bool overwrite, CommandFiles& files, ProblemList& problems);
// Writes the files and prints, for each, what it does not do. `quiet`: without "Wrote ...".
void emit(const EmitWords& words, EmitFacts facts, bool quiet);
// The first Python module: its kind, and the name by which it is imported; "" and "amp" if there is
// none.
std::pair<std::string, std::string> emitted_module(const EmitWords& words);

// --emit-pytorch, of earlier versions.
void refuse_emit_pytorch(CLI::App& app, ProblemList& problems);

}  // namespace lockstep
