// How does Lockstep say that something is wrong?
// One exception type for everything a user can put right (exit code 2): it carries all problems of
// an input at once, each with the value, the constraint it broke and a hint.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

// A wrong input: bad usage, bad file, unknown name. `what()` is the text for stderr.
class InputError : public std::runtime_error {
 public:
  // One problem, e.g. "format 'fp61': unknown", hint "did you mean 'fp16'?".
  explicit InputError(std::string problem, std::string hint = "");
  // Several problems of one input; throws std::logic_error when `problems` is empty.
  InputError(std::string_view subject, std::vector<std::string> problems);

  const std::vector<std::string>& problems() const { return problems_; }

 private:
  std::vector<std::string> problems_;
};

// Collects the problems of one input, so that all of them are reported together: all that somebody
// reads; of the others, which a damaged file may have by the million, the number.
class ProblemList {
 public:
  static constexpr size_t kMostKept = 100;

  explicit ProblemList(std::string subject) : subject_(std::move(subject)) {}
  void add(std::string problem, std::string hint = "");
  bool empty() const { return count_ == 0; }
  size_t count() const { return count_; }  // those not kept included
  // Throws: InputError with every problem added so far, if there is one.
  void throw_if_any() const;

 private:
  std::string subject_;
  std::vector<std::string> problems_;
  size_t count_ = 0;
};

// The candidates that go on with '_' where `name` ends, or the one nearest to it by edit distance,
// as "did you mean 'x'?"; the list of all candidates when there is none.
std::string did_you_mean(std::string_view name, const std::vector<std::string>& candidates);

}  // namespace lockstep
