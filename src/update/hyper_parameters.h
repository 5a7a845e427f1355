// The numbers that a row of a table takes, and those that a user gave.
// Optimizers and learning-rate schedules are rows that list their numbers by name, default and
// range. Options, JSON, checks and help are derived from that list.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>

#include "src/core/error.h"

namespace lockstep {

struct HyperParameter {
  enum class Range : uint8_t {
    kFinite,
    kNonNegative,  // 0 <= x < infinity
    kPositive,     // 0 < x < infinity
    kBelowOne,     // 0 <= x < 1
    kUpToOne,      // 0 <= x <= 1
    kExponent,     // 0 <= x <= 1000
    kFlag,         // 0 or 1
    kCount,        // a whole number, 0 <= x <= 2^53
    kPositiveCount,
    kBelowHundred,  // a whole number, 1 <= x < 100
  };
  std::string_view name;
  double initial = 0;  // the value when none is given
  Range range;
  std::string_view help;
};

using HyperValues = std::map<std::string, double, std::less<>>;

// A row by its name, with the numbers given for it. The others have their initial value.
struct HyperChoice {
  std::string name;
  HyperValues values;
};

// All numbers of a row: those given, and the initial ones of the others.
class HyperNumbers {
 public:
  HyperNumbers(std::span<const HyperParameter> parameters, const HyperValues& given);
  double operator[](std::string_view name) const;  // Throws: std::out_of_range
  const HyperValues& all() const { return values_; }

 private:
  HyperValues values_;
};

// Adds to `problems` every name that the row lacks and every value outside its range.
void check_hyper_values(const HyperChoice& choice, std::span<const HyperParameter> parameters,
                        ProblemList& problems);

// "0 <= momentum < 1".
std::string range_text(const HyperParameter& parameter);
// "lr=0.05, momentum=0.9, ...": names and initial values, for lists.
std::string initial_values_text(std::span<const HyperParameter> parameters);

// "lr=0.1,nesterov=1"; true and false mean 1 and 0. Throws: InputError, with `subject`.
HyperValues parse_hyper_values(std::string_view subject, std::string_view text);
// "lr=0.1,nesterov=1", in the shortest digits that read back as the same numbers.
std::string hyper_values_text(const HyperValues& values);

}  // namespace lockstep
