// See run_option_text.h.
#include "src/train/run_option_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <charconv>
#include <cmath>
#include <cstdlib>
#include <limits>

#include "src/core/error.h"
#include "src/core/text.h"

namespace lockstep {
namespace {

std::string power_or_number(uint64_t value) {
  if (value == UINT64_MAX) return "2^64-1";
  if (value == kLargestCount) return "2^63-1";
  if (value == UINT32_MAX) return "2^32-1";
  return fmt::format("{}", value);
}

std::string shown(std::string_view text) {
  return text.empty() ? "''" : std::string(text);
}

std::vector<std::string> parts_of(std::string_view text) {
  return text.empty() ? std::vector<std::string>{} : split(text, ',');
}

std::vector<std::string> known_words(const RunOption& row) {
  return {row.words.begin(), row.words.end()};
}

// The texts of each type of value.
struct Printer {
  const RunOption& row;
  const RunOptions& options;

  std::string operator()(std::monostate) const { return ""; }
  std::string operator()(const ChosenWord& word) const {
    return std::string(row.words[word.index(options)]);
  }
  template <typename T>
  std::string operator()(const OptionMember<T>& member) const {
    return text(member.of(options));
  }
  static std::string text(const std::string& value) { return value; }
  static std::string text(int64_t value) { return fmt::format("{}", value); }
  static std::string text(uint64_t value) { return fmt::format("{}", value); }
  static std::string text(bool value) { return value ? "true" : ""; }
  static std::string text(double value) { return fmt::format("{}", value); }
  static std::string text(const std::optional<double>& value) { return value ? text(*value) : ""; }
  static std::string text(const std::vector<std::string>& value) { return join(value, ","); }
  static std::string text(const std::vector<int64_t>& value) {
    return fmt::format("{}", fmt::join(value, ","));
  }
  static std::string text(const std::map<std::string, double>& value) {
    return named_numbers_text(value);
  }
  static std::string text(const HyperValues& value) { return hyper_values_text(value); }
  static std::string text(const HyperChoice& value) { return value.name; }
  static std::string text(const std::vector<ParameterGroup>&) { return ""; }
};

struct Setter {
  const RunOption& row;
  std::string_view given;
  RunOptions& options;

  void operator()(std::monostate) const {}
  void operator()(const ChosenWord& word) const {
    word.choose(options, known_word(row.option, given, known_words(row)));
  }
  template <typename T>
  void operator()(const OptionMember<T>& member) const {
    set(member.in(options));
  }
  void set(std::string& value) const { value = given; }
  void set(int64_t& value) const {
    value = static_cast<int64_t>(whole_number(row.option, given, row.low, row.high));
  }
  void set(uint64_t& value) const { value = whole_number(row.option, given, row.low, row.high); }
  void set(bool& value) const { value = true; }
  void set(double& value) const { value = any_number(row.option, given); }
  void set(std::optional<double>& value) const { value = any_number(row.option, given); }
  void set(std::vector<std::string>& value) const { value = parts_of(given); }
  void set(std::vector<int64_t>& value) const {
    value.clear();
    ProblemList problems("");
    for (const std::string& word : parts_of(given)) {
      int64_t& step = value.emplace_back(0);
      const char* const end = word.data() + word.size();
      const auto [stop, error] = std::from_chars(word.data(), end, step);
      if (error == std::errc() && stop == end) continue;
      problems.add(fmt::format("{} {}: numbers of steps required", row.option, word),
                   fmt::format("for example {} 2,0,1", row.option));
    }
    problems.throw_if_any();
  }
  void set(std::map<std::string, double>& value) const { value = named_numbers(row.option, given); }
  void set(HyperValues& value) const { value = parse_hyper_values(row.option, given); }
  void set(HyperChoice& value) const { value.name = given; }
  void set(std::vector<ParameterGroup>&) const {}
};

}  // namespace

std::string option_text(const RunOption& row, const RunOptions& options) {
  return row.text != nullptr ? row.text(options) : std::visit(Printer{row, options}, row.member);
}

void set_option(const RunOption& row, std::string_view text, RunOptions& options) {
  if (row.parse != nullptr) {
    row.parse(row, text, options);
  } else {
    std::visit(Setter{row, text, options}, row.member);
  }
}

void check_option(const RunOption& row, const RunOptions& options, ProblemList& problems) {
  const std::string_view name = row.option.empty() ? row.key : row.option.substr(2);
  if (const auto* count = std::get_if<OptionMember<int64_t>>(&row.member)) {
    const int64_t value = count->of(options), least = static_cast<int64_t>(row.low);
    if (value < least) problems.add(fmt::format("{} {}: at least {} required", name, value, least));
  } else if (row.limit) {
    const NumberLimit& limit = *row.limit;
    const double value = std::get<OptionMember<double>>(row.member).of(options);
    const bool is_below = limit.infinity ? !std::isnan(value) : value < HUGE_VAL;
    if (is_below && (limit.zero ? value >= 0 : value > 0)) return;
    const std::string range =
        limit.zero ? fmt::format("0 <= {} < infinity", name) : fmt::format("{} > 0", name);
    problems.add(fmt::format("{} {}: {} required", name, value, range), std::string(limit.hint));
  }
}

uint64_t whole_number(std::string_view option, std::string_view text, uint64_t low, uint64_t high) {
  uint64_t value = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error == std::errc() && stop == end && value >= low && value <= high) return value;
  throw InputError(fmt::format("{} {}: a whole number, {} <= N <= {} required", option, shown(text),
                               low, power_or_number(high)),
                   "digits only, as in 400");
}

double any_number(std::string_view option, std::string_view text) {
  const std::string word(text);
  char* end = nullptr;
  const double value = std::strtod(word.c_str(), &end);
  if (!word.empty() && *end == '\0' && word.find_first_of(" \t\n") == std::string::npos) {
    return value;
  }
  throw InputError(fmt::format("{} {}: a number required", option, shown(text)),
                   "as in 0.05 or 1e-3");
}

size_t known_word(std::string_view option, std::string_view text,
                  const std::vector<std::string>& words) {
  for (size_t i = 0; i < words.size(); ++i) {
    if (words[i] == text) return i;
  }
  throw InputError(fmt::format("{} {}: unknown", option, shown(text)), did_you_mean(text, words));
}

std::map<std::string, double> named_numbers(std::string_view option, std::string_view text) {
  std::map<std::string, double> values;
  ProblemList problems("");
  for (const std::string& part : split(text, ',')) {
    const size_t equals = part.find('=');
    const std::string number = equals == std::string::npos ? "" : part.substr(equals + 1);
    char* end = nullptr;
    const double value = std::strtod(number.c_str(), &end);
    if (equals == 0 || number.empty() || *end != '\0') {
      problems.add(fmt::format("{} {}: NAME=X required", option, shown(part)),
                   "as in layers=2,width=64");
    } else if (!values.emplace(part.substr(0, equals), value).second) {
      problems.add(fmt::format("{} {}: named twice", option, part));
    }
  }
  problems.throw_if_any();
  return values;
}

std::string named_numbers_text(const std::map<std::string, double>& values) {
  std::vector<std::string> parts;
  for (const auto& [name, value] : values) parts.push_back(fmt::format("{}={}", name, value));
  return join(parts, ",");
}

}  // namespace lockstep
