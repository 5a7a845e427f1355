// The commands of this version, in the order in which a user needs them.
#include <array>
#include <vector>

#include "src/cli/command.h"
#include "src/core/find_row.h"
#include "src/core/text.h"

namespace lockstep {
namespace {

constexpr std::array kCommands = {
    Command{.name = "demo",
            .help = "train a small network in several formats and write the report as a page",
            .declare = declare_demo},
    Command{.name = "replay",
            .help = "train a model in several number formats at once and record what they did",
            .declare = declare_replay},
    Command{.name = "report",
            .help = "show the results of a run: which lanes trained, which layer broke first",
            .declare = declare_report},
    Command{
        .name = "recommend",
        .help =
            "show which layers can use a low-precision format, and with which loss scale; write a "
            "policy",
        .declare = declare_recommend},
    Command{.name = "check",
            .help = "judge a run, a capture or a model by its baseline, for CI",
            .declare = declare_check},
    Command{.name = "baseline",
            .help = "record what a good run is, and how far noise alone takes it",
            .declare = declare_baseline},
    Command{
        .name = "verify",
        .help = "compare a capture with PyTorch's results, or the models with this machine's units",
        .declare = declare_verify},
    Command{.name = "explain",
            .help = "show what a policy does to a model: every op, format, cast and accumulator",
            .declare = declare_explain},
    Command{.name = "round",
            .help = "show a number in a format: bits, value, error, neighbours",
            .declare = declare_round},
    Command{.name = "dot",
            .help = "compute dot products with any accumulator, step by step or block by block",
            .declare = declare_dot},
    Command{.name = "list",
            .help = "list formats, presets, models and everything else that has a name",
            .declare = declare_list},
    Command{.name = "monitor",
            .help = "write the run file of lockstep_capture.Monitor, which starts this itself",
            .declare = declare_monitor},
};

std::string& stored_command_line() {
  static std::string text;
  return text;
}

}  // namespace

std::span<const Command> commands() {
  return kCommands;
}

int run_command(const std::vector<std::string>& words) {
  const Command& command = find_row("command", words.at(0), commands());
  CLI::App app;
  const std::function<int()> work = command.declare(app);
  app.parse(std::vector<std::string>(words.rbegin(), words.rend() - 1));  // the last word first
  set_command_line(words);
  return work();
}

const std::string& command_line() {
  return stored_command_line();
}

void set_command_line(std::span<const std::string> words) {
  std::string text = "lockstep";  // the program's own path says nothing about the run
  for (const std::string& word : words) text += " " + shell_quoted(word);
  stored_command_line() = std::move(text);
}

}  // namespace lockstep
