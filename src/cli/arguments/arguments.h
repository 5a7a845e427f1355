// Checks the arguments of a command line.
// Numbers are read by the project's own rules, because CLI11 silently changes those that do not
// fit. Problems are collected, so that one message names every mistake. Knows no command.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "src/core/error.h"

namespace lockstep {

inline constexpr uint64_t kLargestCount = INT64_MAX;  // 2^63-1: steps and intervals
// A batch of more than a million examples is a mistake: one layer's values would fill any memory.
inline constexpr uint64_t kLargestBatch = 1 << 20;

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
  void one_of(CLI::Option* option, std::vector<std::string> names) const;
  // NAME=X,NAME=X,...: added to `values`.
  void named_numbers(CLI::Option* option, std::map<std::string, double>& values) const;

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

// Two names of one file, which need not exist yet.
bool is_same_file(const std::string& a, const std::string& b);

// --backward of the commands that build a step graph.
inline constexpr std::string_view kBackwardPerLoss = "per-loss";
CLI::Option* declare_backward(CLI::App& app, const ArgumentChecks& checks, std::string& value);

}  // namespace lockstep
