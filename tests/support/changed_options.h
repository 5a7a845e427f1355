// Run options with one row's value changed, for tests that loop over all rows.
#pragma once

#include <string>
#include <type_traits>
#include <variant>

#include "src/train/run_option_rows.h"
#include "src/train/run_option_syntax.h"
#include "src/train/run_option_text.h"
#include "src/update/optimizers.h"

namespace lockstep::testing {

// A value other than the default, as a command line has it; "": one of the optimizer's numbers.
inline std::string other_text(const RunOption& row) {
  return std::visit(
      [&](const auto& member) -> std::string {
        using T = std::remove_cvref_t<decltype(member)>;
        const auto is = [](auto example) {
          return std::is_same_v<T, OptionMember<decltype(example)>>;
        };
        if constexpr (std::is_same_v<T, ChosenWord>) return std::string(row.words[1]);
        if (row.parse == parse_optimizer_args) return "nesterov=1";
        if (row.parse == parse_schedule_option) return "cosine:warmup=5,eta_min=0.25";
        if (row.parse == parse_group_option) return "fc*:lr=0.5";
        if (row.parse == parse_statistics) return "health";
        if (row.parse == parse_lanes) return "fp32,tf32,pure-fp16";
        if (is(HyperChoice())) return "adamw";
        if (is(HyperValues())) return "clip_norm=0.5,eps=1e-06";
        if (is(std::map<std::string, double>())) return "hidden1=24";
        if (is(std::vector<int64_t>())) return "2,0,1";
        if (is(std::vector<std::string>())) return "fc1,conv*";
        if (is(std::string())) return "shapes:an odd 'folder'";
        if (is(double()) || is(std::optional<double>())) return "0.1";
        return "3";  // counts, twins; a flag takes any
      },
      row.member);
}

inline void change(const RunOption& row, RunOptions& options) {
  if (!row.number.empty()) {
    for (const Optimizer& optimizer : optimizers()) {
      for (const HyperParameter& p : optimizer.parameters) {
        if (p.name == row.number) options.optimizer.name = optimizer.name;
      }
    }
    set_option(row, "0.25", options);
  } else {
    set_option(row, other_text(row), options);
  }
}

}  // namespace lockstep::testing
