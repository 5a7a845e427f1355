// The program: finds the command, runs it, and maps errors to exit codes.
//   0 fine   1 regression   2 usage, input or file error   3 nothing to compare with   130 Ctrl-C
#include <fmt/format.h>
#include <malloc.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <new>
#include <string>
#include <vector>

#include "src/cli/arguments.h"
#include "src/cli/command.h"
#include "src/core/error.h"
#include "src/core/find_row.h"
#include "src/record/run/run_file.h"

namespace lockstep {
namespace {

constexpr std::string_view kExitCodes =
    "Exit codes: 0 fine; 1 the check found a regression; 2 usage, input or file error;\n"
    "3 nothing to compare with; 130 stopped by Ctrl-C (the run file is intact).\n";

std::string overview() {
  std::string text = fmt::format(
      "Lockstep {}: the same training steps in several number formats, side by side.\n\n"
      "Trains one network in FP16, BF16, TF32 and others at once, in lockstep with an FP32\n"
      "reference, and shows what the formats did to every layer.\n\nCommands:\n",
      LOCKSTEP_VERSION);
  for (const Command& command : commands()) {
    text += fmt::format("  {:<10} {}\n", command.name, command.help);
  }
  text +=
      "\nTo see it work (half a minute, no data needed):\n"
      "  lockstep replay lenet --lanes fp32,torch-autocast-fp16,pure-fp16 --steps 50 -o first.h5\n"
      "  lockstep report first.h5\n\n"
      "`lockstep COMMAND --help` explains a command.\n\n";
  return text + std::string(kExitCodes);
}

void require_known_command(int argc, char** argv) {
  if (argc < 2 || argv[1][0] == '-') return;
  find_row("command", argv[1], commands());
}

// CLI11's messages in the form of all others: the problem, the rule, and where it is explained.
InputError usage_error(const CLI::ParseError& error, const CLI::App& app) {
  const CLI::App* command = &app;
  for (const CLI::App* sub : app.get_subcommands()) {
    command = sub;
    for (const CLI::App* part : sub->get_subcommands()) command = part;
  }
  const std::string name = command == &app ? "" : command->get_name();
  const std::string help =
      fmt::format("`lockstep {}{}--help` lists the options", name, name.empty() ? "" : " ");
  if (error.get_exit_code() != static_cast<int>(CLI::ExitCodes::ExtrasError)) {
    return InputError(fmt::format("{}{}{}", name, name.empty() ? "" : ": ", error.what()), help);
  }
  std::vector<std::string> known;
  for (const CLI::Option* option : command->get_options()) {
    for (const std::string& flag : option->get_lnames()) known.push_back("--" + flag);
  }
  ProblemList problems(name.empty() ? "lockstep" : name);
  for (const std::string& word : command->remaining(/*recurse=*/true)) {
    problems.add(word.starts_with("-") ? fmt::format("option '{}': unknown", word)
                                       : fmt::format("argument '{}': one too many", word),
                 word.starts_with("-") ? did_you_mean(word, known) : help);
  }
  try {
    problems.throw_if_any();
  } catch (const InputError& all) {
    return all;
  }
  return InputError(error.what(), help);
}

int run(int argc, char** argv) {
  require_known_command(argc, argv);
  set_command_line(argc, argv);
  CLI::App app("Lockstep: the same training steps in several number formats, side by side.",
               "lockstep");
  app.set_version_flag("--version", std::string("lockstep ") + LOCKSTEP_VERSION);
  app.footer(std::string(kExitCodes));
  app.require_subcommand(0, 1);
  std::vector<std::pair<CLI::App*, std::function<int()>>> declared;
  for (const Command& command : commands()) {
    CLI::App* sub = app.add_subcommand(std::string(command.name), std::string(command.help));
    declared.emplace_back(sub, command.declare(*sub));
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help and --version
    throw usage_error(error, app);
  }
  for (const auto& [sub, work] : declared) {
    if (!sub->parsed()) continue;
    ProblemList problems(sub->get_name());
    refuse_empty_words(*sub, problems);
    problems.throw_if_any();
  }
  for (const auto& [sub, work] : declared) {
    if (sub->parsed()) return work();
  }
  fmt::print("{}", overview());
  return kExitFine;
}

}  // namespace
}  // namespace lockstep

namespace {

int run_and_report_errors(int argc, char** argv) {
  try {
    return lockstep::run(argc, argv);
  } catch (const lockstep::InputError& error) {
    fmt::print(stderr, "lockstep: {}\n", error.what());
  } catch (const lockstep::WriteError& error) {
    fmt::print(stderr, "lockstep: {}\n", error.what());
  } catch (const std::bad_alloc&) {
    fmt::print(stderr, "lockstep: out of memory; a smaller --batch or fewer --lanes need less\n");
  } catch (const std::exception& error) {
    // Writing standard output to a full disk throws; main reports it.
    if (std::ferror(stdout) == 0) {
      fmt::print(stderr, "lockstep: internal error: {}\n", error.what());
    }
  }
  return lockstep::kExitUsage;
}

}  // namespace

int main(int argc, char** argv) {
  // Tensors go back to the system when they are freed: by default glibc keeps those below 32 MiB.
  mallopt(M_MMAP_THRESHOLD, 1 << 20);
  const int code = run_and_report_errors(argc, argv);
  errno = 0;
  const bool flushed = std::fflush(stdout) == 0;
  if (flushed && std::ferror(stdout) == 0) return code;
  fmt::print(stderr, "lockstep: standard output: cannot be written{}{}\n", errno != 0 ? ": " : "",
             errno != 0 ? std::strerror(errno) : "");
  return lockstep::kExitUsage;
}
