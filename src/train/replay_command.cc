// See replay_command.h.
#include "src/train/replay_command.h"

#include <fmt/format.h>

#include <vector>

#include "src/core/text.h"
#include "src/train/run_option_rows.h"
#include "src/train/run_option_text.h"

namespace lockstep {
namespace {

std::vector<std::string> words_of(const RunOption& row, const RunOptions& options,
                                  const RunOptions& defaults) {
  if (row.printed != nullptr) return row.printed(row, options);
  const std::string text = option_text(row, options);
  if (text == option_text(row, defaults)) return {};
  if (std::holds_alternative<OptionMember<bool>>(row.member) && row.text == nullptr) {
    return {std::string(row.option)};  // a flag
  }
  return {fmt::format("{} {}", row.option, shell_quoted(text))};
}

}  // namespace

std::string replay_command(const RunOptions& options, const std::string& output) {
  const bool is_captured = !options.capture_hash.empty();
  RunOptions defaults;
  if (is_captured) defaults.steps = 0;  // all of them
  std::string command = "lockstep replay " + shell_path(options.model);
  for (const RunOption& row : run_options()) {
    // A capture defines the options of models, and replay refuses them.
    if (row.option.empty() || (is_captured && row.of == OptionOf::kModels)) continue;
    for (const std::string& word : words_of(row, options, defaults)) command += " " + word;
  }
  return command + " -o " + shell_path(output);
}

}  // namespace lockstep
