// Reads the scaler's own numbers by its table of keys, then the keys that say how it is used.
#include "src/policy/parse/loss_scale_table.h"

#include <fmt/format.h>

#include <algorithm>

#include "src/core/text.h"
#include "src/policy/parse/keys.h"

namespace lockstep {
namespace {

// The loss is FP32, where a tiny factor is 0 and a huge one is infinite.
void read_number(TomlTable& table, const LossScaleKey& key, double& value) {
  const auto number = table.number(key.name);
  if (!number) return;
  const double held = static_cast<float>(*number);
  const bool above = held > key.least || (key.least_allowed && *number == key.least);
  const bool below = held < key.most || (key.most_allowed && *number == key.most);
  if (above && below) {
    value = *number;
    return;
  }
  table.problem(key.name, fmt::format("= {:g}: must be {} {:g} and {} {:g}, in FP32", *number,
                                      key.least_allowed ? "at least" : "above", key.least,
                                      key.most_allowed ? "at most" : "below", key.most));
}
void read_number(TomlTable& table, const LossScaleKey& key, int64_t& value) {
  const auto number = table.integer(key.name);
  if (!number) return;
  if (*number < 1) {
    table.problem(key.name, "= " + std::to_string(*number) + ": must be at least 1");
  }
  value = *number;
}
void read_number(TomlTable& table, const LossScaleKey& key, bool& value) {
  value = table.boolean(key.name).value_or(value);
}

void refuse_key(TomlTable& table, const LossScaleKey& key, const LossScaler& scaler) {
  std::vector<std::string> kinds;
  for (const LossScaler& other : loss_scalers()) {
    if (other.knows(key.name)) kinds.emplace_back(other.name);
  }
  table.problem(key.name, "has no effect: kind is " + std::string(scaler.name),
                "kinds that take it: " + join(kinds, ", "));
}

void check_use(TomlTable& table, const LossScaleUse& use, const LossScaler& scaler) {
  const std::string kind = "kind is " + std::string(scaler.name);
  if (scaler.check == LossScaler::Check::kNone) {
    for (const std::string_view key : {"replay", "clip", "skip", "per_loss"}) {
      if (table.has(key)) table.problem(key, "has no effect: " + kind);
    }
  } else if (use.replay && !scaler.knows("growth_interval")) {
    table.problem("replay", "= true: " + kind + ": the same scale would overflow again",
                  "choose a kind whose scale changes");
  }
}

void read_use(TomlTable& table, LossScaleUse& use) {
  use.replay = table.boolean("replay").value_or(use.replay);
  if (const auto limit = table.integer("replay_limit")) {
    use.replay_limit = *limit;
    if (*limit < 2) {
      table.problem("replay_limit", "= " + std::to_string(*limit) + ": must be at least 2",
                    "the first attempt counts");
    }
    if (!use.replay) table.problem("replay_limit", "has no effect: replay is false");
  }
  read_name(table, "clip", second_of("after_unscale", "before_unscale"), use.clip_before_unscale);
  read_name(table, "skip", second_of("step", "group"), use.skip_by_group);
  read_name(table, "per_loss", second_of("shared", "separate"), use.per_loss);
  if (use.per_loss.value_or(false) && use.clip_before_unscale) {
    const bool here = table.has("per_loss");
    table.problem(here ? "per_loss" : "clip",
                  std::string(here ? "= \"separate\" with clip = \"before_unscale\""
                                   : "= \"before_unscale\" with per_loss = \"separate\"") +
                      ": gradients of several scales never form one gradient to clip",
                  "per_loss = \"shared\", or clip = \"after_unscale\"");
  }
}

}  // namespace

void read_loss_scale(TomlTable& table, LossScaleSpec& spec, LossScaleUse& use) {
  const LossScaler* const extended = &find_loss_scaler(spec.kind);
  const LossScaler* scaler = table.has("kind") ? nullptr : extended;  // null: of unknown kind
  read_name(
      table, "kind", [](const std::string& name) { return &find_loss_scaler(name); }, scaler);
  if (scaler != nullptr && scaler != extended) {
    spec = scaler->defaults;
    use = {};
  }
  for (const LossScaleKey& key : loss_scale_keys()) {
    std::visit([&](auto member) { read_number(table, key, spec.*member); }, key.member);
    if (table.has(key.name) && scaler != nullptr && !scaler->knows(key.name)) {
      refuse_key(table, key, *scaler);
    }
  }
  read_use(table, use);
  if (scaler != nullptr) check_use(table, use, *scaler);
  if (spec.min_scale > std::min(spec.init_scale, spec.max_scale)) {
    table.problem("min_scale",
                  fmt::format("= {}: must be at most init_scale = {} and max_scale = {}",
                              spec.min_scale, spec.init_scale, spec.max_scale));
  }
  table.finish();
}

}  // namespace lockstep
