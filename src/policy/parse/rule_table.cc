// Reads where a rule applies and what it sets there, and checks that the two fit together.
#include "src/policy/parse/rule_table.h"

#include <fmt/format.h>

#include <cmath>

#include "src/graph/op.h"
#include "src/graph/site.h"
#include "src/policy/parse/keys.h"

namespace lockstep {
namespace {

bool is_glob(std::string_view text) {
  return text.find_first_of("*?") != std::string_view::npos;
}

template <typename Find>
void check_literal(TomlTable& table, std::string_view key, const std::string& text, Find find) {
  if (is_glob(text)) return;
  try {
    find(text);
  } catch (const InputError& error) {
    table.problem(key, error);
  }
}

void read_place(TomlTable& table, PolicyRule& rule) {
  rule.line = table.line();
  rule.layer = table.text("layer").value_or(rule.layer);
  rule.op = table.text("op").value_or(rule.op);
  rule.role = table.text("role").value_or(rule.role);
  rule.point = table.text("point").value_or(rule.point);
  read_name(table, "place", find_place, rule.place);
  check_literal(table, "op", rule.op, [](const std::string& name) { find_op(name); });
  check_literal(table, "role", rule.role, [](const std::string& name) { find_role(name); });
  check_literal(table, "point", rule.point, [](const std::string& name) { find_point(name); });
}

void read_region(TomlTable& table, const Policy& policy, PolicyRule& rule) {
  const auto autocast = table.text("autocast");
  if (!autocast) return;
  rule.autocast_off = *autocast == "off";
  if (!rule.autocast_off) table.problem("autocast", "= '" + *autocast + "': must be \"off\"");
  if (policy.low == nullptr) {
    table.problem("autocast", "= \"off\" has no effect: the policy has no [autocast] format");
  }
}

// Multiplying and dividing by a power of two is exact but for overflow and underflow.
void read_layer_scale(TomlTable& table, PolicyRule& rule) {
  rule.loss_scale = table.number("loss_scale");
  if (!rule.loss_scale) return;
  constexpr double kLeast = 0x1p-64, kMost = 0x1p64;
  const double scale = *rule.loss_scale;
  if (scale >= kLeast && scale <= kMost && std::exp2(std::ilogb(scale)) == scale) return;
  table.problem("loss_scale",
                fmt::format("= {:g}: must be a power of two from 2^-64 to 2^64", scale));
}

void check_rule(TomlTable& table, const PolicyRule& rule) {
  const bool of_ops = table.has("compute") || table.has("accumulator") || table.has("autocast") ||
                      table.has("loss_scale");
  const bool of_sites = table.has("format") || table.has("rounding");
  if (!of_ops && !of_sites) {
    table.problem("", "sets nothing",
                  "give compute, autocast, format, rounding, accumulator or loss_scale");
  }
  if (table.has("compute") && table.has("autocast")) {
    table.problem("", "has compute and autocast: compute sets the formats with or without autocast",
                  "remove one of them");
  }
  if (of_ops && of_sites) {
    table.problem("",
                  "mixes compute, autocast, accumulator or loss_scale, which apply to ops, with "
                  "format or rounding, which apply to single values",
                  "write two rules");
  }
  if (of_ops && (table.has("role") || table.has("point"))) {
    table.problem("",
                  "has role or point, but compute, autocast, accumulator and loss_scale match "
                  "layer and op only",
                  "remove role and point, or use format");
  }
  if (of_sites && rule.point == to_string(Point::kAccumulator)) {
    table.problem("point", "= 'accumulator': a sum's format belongs to its accumulator",
                  "use accumulator = \"fp16\" instead of format");
  }
  if (rule.point == to_string(Point::kStorage) && rule.rounding) {
    table.problem("point", "= 'storage' with rounding: what is stored rounds as [storage] says",
                  "give format alone, or set [storage] rounding");
  }
}

}  // namespace

void read_rule(TomlTable& table, Policy& policy) {
  PolicyRule rule;
  read_place(table, rule);
  rule.takes_back = table.text("compute") == kAsPolicy;
  if (!rule.takes_back) read_format(table, "compute", rule.compute, policy.notes);
  read_region(table, policy, rule);
  read_format(table, "format", rule.format, policy.notes);
  read_name(table, "rounding", find_rounding, rule.rounding);
  read_accumulator(table, rule.accumulator);
  read_layer_scale(table, rule);
  table.finish();
  check_rule(table, rule);
  policy.rules.push_back(std::move(rule));
}

}  // namespace lockstep
