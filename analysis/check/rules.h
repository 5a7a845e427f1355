// The rules of a check: limits that replace measured ones, alarms that are known and ignored for a
// while, metrics that must be judged. Read from a TOML file (docs/check-rules.md); plain data.
// Knows nothing of runs.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

inline constexpr int kRulesVersion = 1;

// What a rule applies to: globs, all of which must match.
struct RulePattern {
  std::string metric = "*";  // or a kind of finding
  std::string lane = "*";
  std::string layer = "*";  // a module path; of a parameter's number, the parameter's name
  std::string role = "*";
  int line = 0;  // of the file

  struct Subject {
    std::string_view metric, lane, layer, role;
  };
  bool matches(const Subject& subject) const;
  // "to_zero, lane fp16, layer conv*, line 12": patterns that are "*" are left out.
  std::string text() const;
};

// The last one that matches counts. It has `max` or `factor`, not both.
struct LimitRule {
  RulePattern pattern;
  // For a metric that is worse when it grows: the largest value. For one that counts either way:
  // the largest distance from the baseline. In the metric's unit.
  std::optional<double> max;
  std::optional<double> factor;  // of the measured limit's distance from the baseline
};

struct IgnoreRule {
  RulePattern pattern;
  std::string reason;
  std::chrono::year_month_day expires;  // the last day on which it applies
};

struct CheckRules {
  std::string path;
  std::optional<double> alpha;
  std::vector<LimitRule> limits;
  std::vector<IgnoreRule> ignores;
  std::vector<std::string> required;  // names of metrics
};

// Throws: InputError with every problem of the file.
CheckRules rules_from_toml(const std::string& text, const std::string& path);

std::string date_text(const std::chrono::year_month_day& date);  // "2027-01-31"

}  // namespace lockstep
