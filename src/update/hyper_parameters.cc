// See hyper_parameters.h.
#include "src/update/hyper_parameters.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdlib>
#include <vector>

#include "src/core/text.h"

namespace lockstep {
namespace {

using Range = HyperParameter::Range;

// Far beyond any schedule in use, and well within an int64.
constexpr double kLargestExponent = 1000;
constexpr double kHundred = 100;

bool in_range(Range range, double x) {
  constexpr double kLargestExact = 0x1p53;  // whole numbers up to it are exact doubles
  const bool whole = x == std::floor(x) && x >= 0 && x <= kLargestExact;
  switch (range) {
    case Range::kFinite:
      return std::isfinite(x);
    case Range::kNonNegative:
      return x >= 0 && std::isfinite(x);
    case Range::kPositive:
      return x > 0 && std::isfinite(x);
    case Range::kBelowOne:
      return x >= 0 && x < 1;
    case Range::kUpToOne:
      return x >= 0 && x <= 1;
    case Range::kExponent:
      return x >= 0 && x <= kLargestExponent;
    case Range::kFlag:
      return x == 0 || x == 1;
    case Range::kCount:
      return whole;
    case Range::kPositiveCount:
      return whole && x > 0;
    case Range::kBelowHundred:
      return whole && x > 0 && x < kHundred;
  }
  return false;
}

double parse_number(std::string_view subject, std::string_view name, std::string_view text) {
  if (text == "true") return 1;
  if (text == "false") return 0;
  const std::string word(text);
  char* end = nullptr;
  const double value = std::strtod(word.c_str(), &end);  // also hexadecimal
  if (word.empty() || *end != '\0' || word.find_first_of(" \t\n") != std::string::npos) {
    throw InputError(fmt::format("{}: {}={}: a number required", subject, name, text),
                     "e.g. lr=0.1,momentum=0.9");
  }
  return value;
}

}  // namespace

HyperNumbers::HyperNumbers(std::span<const HyperParameter> parameters, const HyperValues& given) {
  for (const HyperParameter& p : parameters) {
    const auto it = given.find(p.name);
    values_.emplace(p.name, it == given.end() ? p.initial : it->second);
  }
}

double HyperNumbers::operator[](std::string_view name) const {
  const auto it = values_.find(name);
  if (it == values_.end()) throw std::out_of_range("no number named " + std::string(name));
  return it->second;
}

void check_hyper_values(const HyperChoice& choice, std::span<const HyperParameter> parameters,
                        ProblemList& problems) {
  std::vector<std::string> names;
  for (const HyperParameter& p : parameters) names.emplace_back(p.name);
  for (const auto& [name, value] : choice.values) {
    const HyperParameter* found = nullptr;
    for (const HyperParameter& p : parameters) {
      if (p.name == name) found = &p;
    }
    if (found == nullptr) {
      problems.add(fmt::format("{} {}: '{}' has no such number", name, value, choice.name),
                   did_you_mean(name, names));
    } else if (!in_range(found->range, value)) {
      problems.add(fmt::format("{} {}: {} required", name, value, range_text(*found)));
    }
  }
}

std::string range_text(const HyperParameter& parameter) {
  const std::string_view name = parameter.name;
  switch (parameter.range) {
    case Range::kFinite:
      return fmt::format("a finite {}", name);
    case Range::kNonNegative:
      return fmt::format("0 <= {} < infinity", name);
    case Range::kPositive:
      return fmt::format("0 < {} < infinity", name);
    case Range::kBelowOne:
      return fmt::format("0 <= {} < 1", name);
    case Range::kUpToOne:
      return fmt::format("0 <= {} <= 1", name);
    case Range::kExponent:
      return fmt::format("0 <= {} <= {}", name, kLargestExponent);
    case Range::kFlag:
      return fmt::format("{} 0 or 1", name);
    case Range::kCount:
      return fmt::format("a whole number, 0 <= {} <= 2^53", name);
    case Range::kPositiveCount:
      return fmt::format("a whole number, 1 <= {} <= 2^53", name);
    case Range::kBelowHundred:
      return fmt::format("a whole number, 1 <= {} < {}", name, kHundred);
  }
  return "";
}

std::string initial_values_text(std::span<const HyperParameter> parameters) {
  std::vector<std::string> parts;
  for (const HyperParameter& p : parameters)
    parts.push_back(fmt::format("{}={}", p.name, p.initial));
  return join(parts, ", ");
}

HyperValues parse_hyper_values(std::string_view subject, std::string_view text) {
  HyperValues values;
  if (text.empty()) return values;
  for (const std::string& part : split(text, ',')) {
    const size_t equals = part.find('=');
    if (equals == 0 || equals == std::string::npos) {
      throw InputError(fmt::format("{}: '{}': NAME=NUMBER required", subject, part),
                       "e.g. lr=0.1,momentum=0.9");
    }
    const std::string name = part.substr(0, equals);
    const double value = parse_number(subject, name, std::string_view(part).substr(equals + 1));
    if (!values.emplace(name, value).second) {
      throw InputError(fmt::format("{}: {} is given twice", subject, name), "give it once");
    }
  }
  return values;
}

std::string hyper_values_text(const HyperValues& values) {
  std::vector<std::string> parts;
  for (const auto& [name, value] : values) parts.push_back(fmt::format("{}={}", name, value));
  return join(parts, ",");
}

}  // namespace lockstep
