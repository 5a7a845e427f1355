// Which words of a command line are refused, and what is said then?
// Numbers are read by the project's own rules (CLI11 changes what does not fit without a word), and
// what is wrong is collected, so that one message names every mistake. Knows no command.
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
// A batch beyond a million examples is a slip: one layer's values would fill any memory.
inline constexpr uint64_t kLargestBatch = 1 << 20;

// Puts checks on options; `problems` receives what they find while the command line is read. A
// refused word reads as the least value allowed, so that reading goes on to the next.
class ArgumentChecks {
 public:
  explicit ArgumentChecks(const std::string& subject)
      : problems_(std::make_shared<ProblemList>(subject)) {}

  // A whole number in decimal digits, low <= N <= high.
  void whole(CLI::Option* option, uint64_t low, uint64_t high) const;
  // A decimal or hexadecimal number; its range is checked by whoever uses it.
  void number(CLI::Option* option) const;
  void one_of(CLI::Option* option, std::vector<std::string> names) const;
  // NAME=X,NAME=X,...: added to `values`.
  void named_numbers(CLI::Option* option, std::map<std::string, double>& values) const;

  ProblemList& problems() const { return *problems_; }

 private:
  std::shared_ptr<ProblemList> problems_;
};

// Adds what `work` throws as InputError to `problems`.
template <typename Work>
void collect_problems(ProblemList& problems, Work work) {
  try {
    work();
  } catch (const InputError& error) {
    for (const std::string& problem : error.problems()) problems.add(problem);
  }
}

// Adds a problem for every option given with an empty word.
void refuse_empty_words(const CLI::App& command, ProblemList& problems);

// What a file to be written may replace.
enum class Replace : uint8_t {
  kNothing,
  kText,  // --overwrite of a text file: anything but an HDF5 file, which may be a run
  kRun,   // --overwrite of a run file: anything but a capture, which nothing brings back
};
// Adds a problem when writing `path` would replace more than `replace` allows, or when it cannot be
// looked at. `hint` says what to do about a file that exists.
void check_output(const std::string& path, Replace replace, const std::string& hint,
                  ProblemList& problems);

// --backward of the commands that build a step graph.
inline constexpr std::string_view kBackwardPerLoss = "per-loss";
CLI::Option* declare_backward(CLI::App& app, const ArgumentChecks& checks, std::string& value);

}  // namespace lockstep
