// See rules.h.
#include "analysis/check/rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "analysis/check/change_alarms.h"
#include "analysis/check/metrics.h"
#include "analysis/findings/finding_kinds.h"
#include "src/core/error.h"
#include "src/core/text.h"
#include "src/graph/ir.h"
#include "src/policy/parse/toml_table.h"
#include "src/policy/parse/toml_text.h"

namespace lockstep {
namespace {

std::vector<std::string> metric_names() {
  std::vector<std::string> names;
  for (const Metric& metric : metrics()) names.emplace_back(metric.name);
  return names;
}

// An ignore rule may name a kind of finding, which has no limit.
std::vector<std::string> alarm_names() {
  std::vector<std::string> names = metric_names();
  for (const FindingKindRow& row : finding_kinds()) names.emplace_back(row.name);
  for (const ChangeAlarm& row : change_alarms()) names.emplace_back(row.name);
  return names;
}

std::vector<std::string> role_names() {
  std::vector<std::string> names;
  for (size_t role = 0; role <= static_cast<size_t>(Role::kLoss); ++role) {  // the last one
    names.emplace_back(to_string(static_cast<Role>(role)));
  }
  return names;
}

bool some_match(const std::string& pattern, const std::vector<std::string>& names) {
  return std::ranges::any_of(names,
                             [&](const std::string& name) { return glob_match(pattern, name); });
}

class RulesReader {
 public:
  RulesReader(const std::string& text, const std::string& path)
      : text_(text), path_(path), problems_("rules '" + path + "'") {}

  CheckRules read() {
    const toml::table parsed = parse();
    TomlTable root(parsed, "", problems_);
    rules_.path = path_;
    read_version(root);
    read_alpha(root);
    read_required(root);
    for (TomlTable& table : root.tables("limit")) read_limit(table);
    for (TomlTable& table : root.tables("ignore")) read_ignore(table);
    root.finish();
    problems_.throw_if_any();
    return std::move(rules_);
  }

 private:
  toml::table parse() const {
    return parse_toml(text_, "rules '" + path_ + "'", "docs/check-rules.md shows the layout");
  }

  void read_version(TomlTable& root) {
    if (!root.has("version")) {
      root.integer("version");
      problems_.add("version: missing", fmt::format("version = {}", kRulesVersion));
      return;
    }
    const auto version = root.integer("version");
    if (version && *version != kRulesVersion) {
      root.problem("version", fmt::format("= {}: must be {}", *version, kRulesVersion));
    }
  }

  void read_alpha(TomlTable& root) {
    rules_.alpha = root.number("alpha");
    if (rules_.alpha && !(*rules_.alpha > 0 && *rules_.alpha < 1)) {
      root.problem("alpha", fmt::format("= {:g}: 0 < alpha < 1 required", *rules_.alpha));
    }
  }

  void read_required(TomlTable& root) {
    for (const TomlTable::Item& item : root.texts("required")) {
      if (find_metric(item.text) == nullptr) {
        root.problem_at(item.line, "required", "has '" + item.text + "': no such metric",
                        did_you_mean(item.text, metric_names()));
      }
      rules_.required.push_back(item.text);
    }
  }

  // Reasons and patterns are shown on terminals and in pull requests.
  static std::optional<std::string> plain_text(TomlTable& table, std::string_view key) {
    auto text = table.text(key);
    if (text && printable(*text) != *text) {
      table.problem(key, "= '" + *text + "': must have no control characters");
    }
    return text;
  }

  RulePattern read_pattern(TomlTable& table, const std::vector<std::string>& metrics) {
    RulePattern pattern;
    pattern.line = table.line();
    pattern.metric = plain_text(table, "metric").value_or(pattern.metric);
    pattern.lane = plain_text(table, "lane").value_or(pattern.lane);
    pattern.layer = plain_text(table, "layer").value_or(pattern.layer);
    pattern.role = plain_text(table, "role").value_or(pattern.role);
    if (!some_match(pattern.metric, metrics)) {
      table.problem("metric", "= '" + pattern.metric + "': no such metric",
                    did_you_mean(pattern.metric, metrics));
    }
    if (!some_match(pattern.role, role_names())) {
      table.problem("role", "= '" + pattern.role + "': no such role",
                    did_you_mean(pattern.role, role_names()));
    }
    return pattern;
  }

  void read_limit(TomlTable& table) {
    LimitRule rule{.pattern = read_pattern(table, metric_names()), .max = {}, .factor = {}};
    rule.max = table.number("max");
    rule.factor = table.number("factor");
    if (table.has("max") == table.has("factor")) {
      table.problem("", table.has("max") ? "has max and factor" : "sets no limit",
                    "give either max or factor");
    }
    if (rule.max) check_max(table, rule);
    if (rule.factor && !(*rule.factor > 0 && std::isfinite(*rule.factor))) {
      table.problem("factor", fmt::format("= {:g}: 0 < factor required", *rule.factor));
    }
    const Metric* metric = find_metric(rule.pattern.metric);
    if (metric != nullptr && metric->zero_tolerance && rule.factor) {
      table.problem("factor",
                    fmt::format("of {} has no effect: a multiple of 0 is 0", metric->name),
                    "max = X allows a share of X");
    }
    table.finish();
    rules_.limits.push_back(std::move(rule));
  }

  // Shares and distances are not negative; logarithms of sizes may be.
  static void check_max(TomlTable& table, const LimitRule& rule) {
    if (!std::isfinite(*rule.max)) {
      table.problem("max", fmt::format("= {}: a finite number required", *rule.max));
    }
    if (*rule.max >= 0) return;
    for (const Metric& metric : metrics()) {
      const bool is_signed =
          metric.worse == WorseIf::kMore &&
          (metric.unit == MetricUnit::kOctaves || metric.unit == MetricUnit::kLoss);
      if (is_signed || !glob_match(rule.pattern.metric, metric.name)) continue;
      table.problem("max", fmt::format("= {:g}: 0 <= max required, of {}", *rule.max, metric.name));
      return;
    }
  }

  void read_ignore(TomlTable& table) {
    IgnoreRule rule{.pattern = read_pattern(table, alarm_names()), .reason = "", .expires = {}};
    const auto reason = plain_text(table, "reason");
    if (!table.has("reason")) {
      table.problem("", "has no reason", "reason = \"why this alarm is known and accepted\"");
    } else if (reason && reason->find_first_not_of(' ') == std::string::npos) {
      table.problem("reason", "= '" + *reason + "': must say why");
    }
    rule.reason = reason.value_or("");
    const auto expires = table.date("expires");
    if (!table.has("expires")) {
      table.problem("", "has no expires", "expires = 2027-01-31, the last day on which it applies");
    }
    if (expires) rule.expires = *expires;
    table.finish();
    rules_.ignores.push_back(std::move(rule));
  }

  const std::string& text_;
  const std::string& path_;
  ProblemList problems_;
  CheckRules rules_;
};

}  // namespace

bool RulePattern::matches(const Subject& subject) const {
  return glob_match(metric, subject.metric) && glob_match(lane, subject.lane) &&
         glob_match(layer, subject.layer) && glob_match(role, subject.role);
}

std::string RulePattern::text() const {
  std::string text = metric == "*" ? "every metric" : metric;
  if (lane != "*") text += ", lane " + lane;
  if (layer != "*") text += ", layer " + layer;
  if (role != "*") text += ", role " + role;
  return fmt::format("{}, line {}", text, line);
}

CheckRules rules_from_toml(const std::string& text, const std::string& path) {
  return RulesReader(text, path).read();
}

std::string date_text(const std::chrono::year_month_day& date) {
  return fmt::format("{:04}-{:02}-{:02}", static_cast<int>(date.year()),
                     static_cast<unsigned>(date.month()), static_cast<unsigned>(date.day()));
}

}  // namespace lockstep
