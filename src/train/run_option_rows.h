// Every option of a run, a row each. The command line, the JSON of run files, limits, the
// comparison of set-ups, the printed command and the documentation derive from the rows.
#pragma once

#include <span>
#include <string_view>

#include "src/train/run_option.h"

namespace lockstep {

// In the order of `replay --help`.
std::span<const RunOption> run_options();

// Where the row's value lies; null if it has none of its own.
const void* address_of(const RunOption& row, const RunOptions& options);
// The row that holds this member of `options`. Throws: std::logic_error without one.
const RunOption& option_at(const RunOptions& options, const void* member);

// "--batch" for option_name(&RunOptions::batch): messages name options by their member.
template <typename T>
std::string_view option_name(T RunOptions::*member) {
  static const RunOptions options;
  return option_at(options, &(options.*member)).option;
}

}  // namespace lockstep
