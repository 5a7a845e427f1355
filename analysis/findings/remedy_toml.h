// TOML of a rule, for edits of policies.
#pragma once

#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "src/policy/parse/toml_text.h"

namespace lockstep {

// A [[rule]] with these keys, all of them texts, and a loss scale where one is given.
inline std::string rule_text(std::initializer_list<std::pair<std::string_view, std::string>> keys,
                             std::optional<double> loss_scale = std::nullopt) {
  toml::table rule;
  if (loss_scale) rule.insert("loss_scale", *loss_scale);
  for (const auto& [key, value] : keys) rule.insert(key, value);
  return toml_text(toml::table{{"rule", toml::array{rule}}}) + "\n";
}

}  // namespace lockstep
