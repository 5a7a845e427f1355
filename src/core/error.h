// The one exception type for every error that a user can fix (exit code 2). It carries all problems
// of an input at once, each with the value, the constraint it broke and a hint.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

// A wrong input: bad usage, bad file, unknown name. `what()` is the text for stderr. Problems may
// quote text of unknown origin: they are stored as printable(), so that each stays one line of any
// terminal, log or report, and without the middle where they are very long.
class InputError : public std::runtime_error {
 public:
  // One problem, e.g. "format 'fp61': unknown", hint "did you mean 'fp16'?".
  explicit InputError(const std::string& problem, const std::string& hint = "");
  // Several problems of one input; throws std::logic_error when `problems` is empty.
  InputError(std::string_view subject, const std::vector<std::string>& problems);

  const std::vector<std::string>& problems() const { return problems_; }

  // The problems as separate lines: each names its subject, too.
  std::vector<std::string> lines() const;

 private:
  std::string subject_;  // empty where it is part of the only problem
  std::vector<std::string> problems_;
};

// Collects the problems of one input, so that they are reported together: the first kMostKept in
// full, the rest as a number, because a damaged file may have millions.
class ProblemList {
 public:
  static constexpr size_t kMostKept = 100;

  explicit ProblemList(std::string subject) : subject_(std::move(subject)) {}
  void add(const std::string& problem, const std::string& hint = "");
  bool empty() const { return count_ == 0; }
  size_t count() const { return count_; }  // including those not kept
  // Throws: InputError with every problem added so far, if there is one.
  void throw_if_any() const;

 private:
  std::string subject_;
  std::vector<std::string> problems_;
  size_t count_ = 0;
};

// Adds the problems of the InputError that `work` throws, if it throws one.
template <typename Work>
void collect_problems(ProblemList& problems, Work work) {
  try {
    work();
  } catch (const InputError& error) {
    for (const std::string& problem : error.problems()) problems.add(problem);
  }
}

// "did you mean 'x'?": the candidates that continue `name` with '_' or '-', else the one nearest by
// edit distance. Without either, the list of all candidates.
std::string did_you_mean(std::string_view name, const std::vector<std::string>& candidates);

}  // namespace lockstep
