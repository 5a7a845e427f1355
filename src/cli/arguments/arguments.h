// Checks the arguments of a command line.
// Numbers are read by the project's own rules, because CLI11 silently changes those that do not
// fit. Problems are collected, so that one message names every mistake. Knows no command.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "src/core/error.h"
#include "src/train/run_option.h"

namespace lockstep {

// Adds checks to options; `problems` collects what they find while the command line is parsed. A
// rejected argument reads as the least value allowed, so that parsing continues.
class ArgumentChecks {
 public:
  explicit ArgumentChecks(const std::string& subject)
      : problems_(std::make_shared<ProblemList>(subject)) {}

  // A whole number in decimal digits, low <= N <= high.
  void whole(CLI::Option* option, uint64_t low, uint64_t high) const;
  // A decimal or hexadecimal number; its range is checked where it is used.
  void number(CLI::Option* option) const;

  ProblemList& problems() const { return *problems_; }

 private:
  std::shared_ptr<ProblemList> problems_;
};

// Adds a problem for every option given with an empty argument.
void refuse_empty_words(const CLI::App& command, ProblemList& problems);

// As the name of an output: standard output. A file of this name is `./-`.
inline constexpr std::string_view kStandardOutput = "-";

// Which files an output file may replace.
enum class Replace : uint8_t {
  kNothing,
  kText,  // --overwrite of a text file: anything but an HDF5 file, which may be a run
  kRun,   // --overwrite of a run file: anything but a capture, which cannot be restored
};
// Adds a problem when writing `path` would replace more than `replace` allows, when the file cannot
// be accessed, or when it is kStandardOutput. `hint` says what to do about a file that exists,
// `option` names the path.
void check_output(const std::string& path, Replace replace, const std::string& hint,
                  ProblemList& problems, std::string_view option = "-o");

// The same for a text file, whose name must end in `extension`. `name`: empty if the option was not
// given.
void check_text_output(const std::string& option, const std::string& name,
                       std::string_view extension, bool overwrite, ProblemList& problems);

// Two names of one file, which need not exist yet.
bool is_same_file(const std::string& a, const std::string& b);

// --threads N: for set_thread_count(); 0 if it was not given. Results do not depend on it.
CLI::Option* declare_threads(CLI::App& app, const ArgumentChecks& checks, int& threads);

// Options of a run on a command's line, in the order of their rows.
struct OptionOnLine {
  const RunOption* row;
  CLI::Option* option;
};
// The default shown in the help is that of `defaults`.
OptionOnLine declare_option(CLI::App& app, const RunOption& row, const RunOptions& defaults);
// Sets those that were given.
void read_options(std::span<const OptionOnLine> options, RunOptions& to, ProblemList& problems);

}  // namespace lockstep
