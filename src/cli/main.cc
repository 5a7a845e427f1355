// The program: finds the command, runs it, and maps errors to exit codes.
//   0 fine   1 regression   2 usage, input or file error   3 nothing to compare with
//   130 Ctrl-C   141 standard output is closed   143 SIGTERM
#include <fcntl.h>
#include <fmt/format.h>
#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <new>
#include <sstream>
#include <string>
#include <system_error>
#include <vector>

#include "src/cli/arguments/arguments.h"
#include "src/cli/command.h"
#include "src/cli/terminal/stop_signal.h"
#include "src/core/error.h"
#include "src/core/find_row.h"
#include "src/core/text.h"
#include "src/core/text_file.h"
#include "src/core/utf8.h"
#include "src/record/run/run_writer.h"

namespace lockstep {
namespace {

constexpr std::string_view kExitCodes =
    "Exit codes: 0 fine; 1 the check found a regression; 2 usage, input or file error;\n"
    "3 nothing to compare with; 130 stopped by Ctrl-C, 143 by SIGTERM (a run file stays intact);\n"
    "141 standard output was closed by its reader, as by `| head`.\n";

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
      "  lockstep demo\n\n"
      "`lockstep COMMAND --help` explains a command.\n\n";
  return text + std::string(kExitCodes);
}

void require_known_command(int argc, char** argv) {
  if (argc < 2 || argv[1][0] == '-') return;
  find_row("command", argv[1], commands());
}

// The option or argument that one of CLI11's messages is about; null: none.
const CLI::Option* subject_of(const CLI::ParseError& error, const CLI::App& command) {
  const std::string_view told = error.what();
  const CLI::Option* found = nullptr;
  for (const CLI::Option* option : command.get_options()) {
    const std::string name = option->get_name();
    const size_t at = told.find(name);
    if (name.empty() || at == std::string_view::npos) continue;
    if (found == nullptr || found->get_name().size() < name.size()) found = option;
  }
  return found;
}

// What CLI11 found, in the form of all other messages: the problem, the value, the constraint.
void add_usage_problem(const CLI::ParseError& error, const CLI::App& command,
                       const std::string& help, ProblemList& problems) {
  const auto code = static_cast<CLI::ExitCodes>(error.get_exit_code());
  if (code == CLI::ExitCodes::RequiredError) {
    for (const CLI::Option* option : command.get_options()) {
      if (!option->get_required() || option->count() > 0) continue;
      problems.add(option->get_name() + ": missing", help);
    }
    std::vector<std::string> parts;
    for (const CLI::App* part : command.get_subcommands([](const CLI::App*) { return true; })) {
      parts.push_back(part->get_name());
    }
    if (problems.empty() && !parts.empty()) {
      problems.add("one of " + join(parts, ", ") + " required", help);
    }
    return;
  }
  const CLI::Option* option = subject_of(error, command);
  if (option == nullptr) return;
  const std::string name = option->get_name();
  const bool is_flag = option->get_items_expected_max() == 0;
  if (is_flag) {
    problems.add(name + ": takes no value", help);
  } else if (code == CLI::ExitCodes::ArgumentMismatch) {
    const int size = option->get_type_size();
    const std::string needed =
        size > 1 ? fmt::format("{} required", option->get_type_name()) : "one value required";
    problems.add(name + (option->count() == 0 && size == 1
                             ? ": a value required, none given"
                             : fmt::format(": {}, {} given", needed, option->results().size())),
                 help);
  } else {
    problems.add(fmt::format("{} {}: cannot be understood", name, join(option->results(), " ")),
                 help);
  }
}

InputError usage_error(const CLI::ParseError& error, const CLI::App& app) {
  const CLI::App* command = &app;
  for (const CLI::App* sub : app.get_subcommands()) {
    command = sub;
    for (const CLI::App* part : sub->get_subcommands()) command = part;
  }
  const std::string name = command == &app ? "" : command->get_name();
  const std::string help =
      fmt::format("`lockstep {}{}--help` lists the options", name, name.empty() ? "" : " ");
  ProblemList problems(name.empty() ? "lockstep" : name);
  if (error.get_exit_code() != static_cast<int>(CLI::ExitCodes::ExtrasError)) {
    add_usage_problem(error, *command, help, problems);
  }
  std::vector<std::string> known;
  for (const CLI::Option* option : command->get_options()) {
    for (const std::string& flag : option->get_lnames()) known.push_back("--" + flag);
  }
  for (const std::string& word : command->remaining(/*recurse=*/true)) {
    problems.add(word.starts_with("-") ? fmt::format("option '{}': unknown", word)
                                       : fmt::format("argument '{}': one too many", word),
                 word.starts_with("-") ? did_you_mean(word, known) : help);
  }
  if (problems.empty()) problems.add("the arguments cannot be understood", help);
  try {
    problems.throw_if_any();
  } catch (const InputError& all) {
    return all;
  }
  return InputError(help);
}

// Run files, JSON and pages record arguments as text.
void require_utf8(int argc, char** argv) {
  ProblemList problems("arguments");
  for (int i = 1; i < argc; ++i) {
    if (is_utf8(argv[i])) continue;
    problems.add(fmt::format("'{}': not UTF-8", argv[i]), "rename the file");
  }
  problems.throw_if_any();
}

int run(int argc, char** argv) {
  require_utf8(argc, argv);
  require_known_command(argc, argv);
  set_command_line(std::vector<std::string>(argv + std::min(argc, 1), argv + argc));
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
    if (error.get_exit_code() == 0) {  // --help and --version
      std::ostringstream text;
      const int code = app.exit(error, text, text);
      fmt::print("{}", text.str());
      return code;
    }
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

// Not by fmt::print, which throws if standard error is closed.
void print_error(const std::string& text) {
  std::fputs(("lockstep: " + text + "\n").c_str(), stderr);
}

// `unwritten`: the reason if standard output or error could not be written.
int run_and_report_errors(int argc, char** argv, int& unwritten) {
  try {
    return lockstep::run(argc, argv);
  } catch (const lockstep::InputError& error) {
    print_error(error.what());  // every problem is one line of printable text
  } catch (const lockstep::WriteError& error) {
    print_error(lockstep::printable(error.what()));
  } catch (const std::bad_alloc&) {
    print_error("out of memory; a smaller --batch or fewer --lanes need less");
  } catch (const std::system_error& error) {
    if (std::ferror(stdout) != 0 || std::ferror(stderr) != 0) {
      unwritten = error.code().value();
    } else {
      print_error("internal error: " + lockstep::printable(error.what()));
    }
  } catch (const std::exception& error) {
    print_error("internal error: " + lockstep::printable(error.what()));
  }
  return lockstep::kExitUsage;
}

}  // namespace

int main(int argc, char** argv) {
  // Tensors go back to the system when they are freed: by default glibc keeps those below 32 MiB.
  mallopt(M_MMAP_THRESHOLD, 1 << 20);
  lockstep::ignore_write_signals();
  std::signal(SIGCHLD, SIG_DFL);  // a launcher that ignores it would hide how our children end
  // Files that are opened later must not become standard output or error.
  int unused = 0;
  while ((unused = open("/dev/null", O_RDWR)) >= 0 && unused <= STDERR_FILENO) {
  }
  if (unused >= 0) close(unused);
  int unwritten = 0;
  const int code = run_and_report_errors(argc, argv, unwritten);
  errno = 0;
  if (std::fflush(stdout) != 0 && unwritten == 0) unwritten = errno;
  if (unwritten == 0 && std::ferror(stdout) == 0) return code;
  if (unwritten == EPIPE) {  // the reader has seen enough: no message, and a verdict stays
    return code == lockstep::kExitFine || code == lockstep::kExitUsage ? lockstep::kExitNoReader
                                                                       : code;
  }
  const std::string hint = lockstep::write_error_hint(unwritten);
  print_error(fmt::format("standard output: cannot be written{}{}{}{}", unwritten != 0 ? ": " : "",
                          unwritten != 0 ? std::strerror(unwritten) : "", hint.empty() ? "" : "; ",
                          hint));
  return lockstep::kExitUsage;
}
