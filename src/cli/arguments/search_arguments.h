// The arguments of `recommend` that say what to search.
#pragma once

#include <string>
#include <vector>

#include "analysis/search/advice.h"
#include "src/core/error.h"

namespace lockstep {

// As given on the command line.
struct SearchWords {
  std::string formats = "fp16,bf16", also, budget = "24", gpu;
};

// Adds a problem for every name that is not known. Narrow formats without a base get bf16.
SearchOptions search_options(const SearchWords& words, ProblemList& problems);

// The help of --gpu.
std::string gpu_help();

// What Ctrl-C in a search says; its exit code.
int search_stopped(const std::string& folder);

// Formats and choices that did not run, with the options that request them.
std::vector<std::string> not_tested(const Advice& advice);

}  // namespace lockstep
