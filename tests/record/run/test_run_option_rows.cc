// Every option, all the way round: as given, into a run file, out of it, and in the printed
// command.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "src/record/run/options_json.h"
#include "src/train/replay_command.h"
#include "tests/support/changed_options.h"

namespace lockstep::test {
namespace {

using testing::change;

// As a shell does, of what shell_quoted writes without escapes.
std::vector<std::string> shell_words(const std::string& command) {
  std::vector<std::string> words = {""};
  bool is_quoted = false;
  for (size_t i = 0; i < command.size(); ++i) {
    const char c = command[i];
    if (c == '\'') {
      is_quoted = !is_quoted;
    } else if (c == '\\' && !is_quoted) {
      words.back() += command[++i];
    } else if (c == ' ' && !is_quoted) {
      words.emplace_back();
    } else {
      words.back() += c;
    }
  }
  return words;
}

// What `lockstep replay` makes of the words.
RunOptions typed_in(const std::string& command) {
  const std::vector<std::string> words = shell_words(command);
  RunOptions options;
  options.model = words.at(2);
  bool has_twins = false;
  for (const RunOption& row : run_options()) {
    for (size_t i = 3; i < words.size(); ++i) {
      if (words[i] != row.option) continue;
      set_option(row, row.type.empty() ? "true" : words.at(i + 1), options);
      has_twins |= row.parse == parse_twins;
    }
  }
  if (!has_twins && needs_twin(options)) add_twins(options, 1);
  return options;
}

TEST_CASE("an option given comes back from a run file and from the printed command") {
  for (const RunOption& row : run_options()) {
    CAPTURE(row.option);
    CAPTURE(row.key);
    RunOptions given;
    given.sizes["hidden2"] = 16;
    change(row, given);
    if (row.option.empty()) continue;
    if (!row.key.empty()) CHECK(options_to_json(given) != options_to_json(RunOptions()));
    if (row.parse != parse_twins && needs_twin(given)) add_twins(given, 1);
    const RunOptions read = options_from_json(options_to_json(given));
    CHECK(option_differences(given, read).empty());
    const std::string command = replay_command(read, "run.h5");
    CAPTURE(command);
    CHECK(option_differences(typed_in(command), read).empty());
  }
}

TEST_CASE("a member without an option comes back from a run file") {
  for (const RunOption& row : run_options()) {
    if (row.key.empty() || !row.option.empty()) continue;
    CAPTURE(row.key);
    RunOptions given;
    change(row, given);
    CHECK(option_differences(RunOptions(), given).size() == 1);
    CHECK(option_differences(given, options_from_json(options_to_json(given))).empty());
  }
}

TEST_CASE("the printed command: a capture, twins, levels of statistics") {
  RunOptions options;
  options.model = "-my runs/a.h5";
  options.capture_hash = "00";
  options.steps = 3;
  options.batch = 7;
  options.lanes = {"fp32", "tf32", "twin"};
  options.loop_changes = {{"lr", 0.5}};
  CHECK(replay_command(options, "b.h5") ==
        "lockstep replay './-my runs/a.h5' --lanes fp32,tf32 --steps 3 --change lr=0.5 -o b.h5");
  options.steps = 0;  // all that were captured
  CHECK(replay_command(options, "b.h5") ==
        "lockstep replay './-my runs/a.h5' --lanes fp32,tf32 --change lr=0.5 -o b.h5");
  RunOptions none;
  none.model = "mlp";
  none.lanes = {"fp32", "tf32"};
  none.measuring.statistics_every = 0;
  CHECK(replay_command(none, "b.h5") ==
        "lockstep replay mlp --lanes fp32,tf32 --twins 0 --statistics-every 0 -o b.h5");
  none.lanes = {"fp32", "tf32", "twin", "twin2"};
  none.measuring.counts_between = true;
  CHECK(replay_command(none, "b.h5") ==
        "lockstep replay mlp --lanes fp32,tf32,twin,twin2 --statistics health -o b.h5");
}

}  // namespace
}  // namespace lockstep::test
