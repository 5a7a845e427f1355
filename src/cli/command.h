// A command is one file (command_<name>.cc) and one line in the table in command_table.cc.
// It declares its options on a CLI11 app and returns the function to run; main.cc turns exceptions
// into exit codes.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

// Exit codes, the same for every command.
enum ExitCode : int {
  kExitFine = 0,
  kExitRegression = 1,    // `check` found one
  kExitUsage = 2,         // usage, input or file error
  kExitInconclusive = 3,  // nothing to compare with
  kExitSignalBase = 128,  // ended by signal n: 128 + n, as in shells (130: Ctrl-C, 143: SIGTERM)
  kExitNoReader = 141,    // standard output is a pipe without a reader, as after SIGPIPE
};

struct Command {
  std::string_view name, help;
  // Declares options on `app`; the function it returns runs after parsing and returns the exit
  // code.
  std::function<int()> (*declare)(CLI::App& app);
};
std::span<const Command> commands();

// Another command, by its words: {"report", "run.h5"}. They become command_line(). Returns: its
// exit code. Throws: as the command; CLI::ParseError if the words are not its own.
int run_command(const std::vector<std::string>& words);

std::function<int()> declare_demo(CLI::App& app);
std::function<int()> declare_replay(CLI::App& app);
std::function<int()> declare_report(CLI::App& app);
std::function<int()> declare_recommend(CLI::App& app);
std::function<int()> declare_check(CLI::App& app);
std::function<int()> declare_baseline(CLI::App& app);
std::function<int()> declare_verify(CLI::App& app);
std::function<int()> declare_explain(CLI::App& app);
std::function<int()> declare_round(CLI::App& app);
std::function<int()> declare_dot(CLI::App& app);
std::function<int()> declare_list(CLI::App& app);
std::function<int()> declare_monitor(CLI::App& app);

// The command line of the command that runs, quoted for a shell; set by main and by run_command.
const std::string& command_line();
void set_command_line(std::span<const std::string> words);

}  // namespace lockstep
