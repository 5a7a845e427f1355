// One function per table of the file, each setting what its keys say and leaving the rest as it
// was: at its default, or as the policy it extends has it. docs/policy.md lists the same keys.
#include "src/graph/policy_parse.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <limits>
#include <sstream>

#include "src/core/text.h"
#include "src/graph/composed_ops.h"
#include "src/graph/factor_scaling_parse.h"
#include "src/graph/foreign_op_names.h"
#include "src/graph/site.h"
#include "src/graph/toml_table.h"

namespace lockstep {
namespace {

struct OpListKey {
  std::string_view key;
  CastClass cast_class;
};
constexpr std::array kOpLists = {
    OpListKey{"low_precision", CastClass::kLowPrecision},
    OpListKey{"fp32", CastClass::kFp32},
    OpListKey{"promote", CastClass::kPromote},
    OpListKey{"follow", CastClass::kFollow},
};

// Switches off a key that the extended policy sets.
constexpr std::string_view kNone = "none";

bool is_glob(std::string_view text) {
  return text.find_first_of("*?") != std::string_view::npos;
}

// What a policy file may name in its lists: forward ops, and the other system's names for them.
std::vector<std::string> listable_ops(OpNames system) {
  std::vector<std::string> names = listable_op_names();
  for (const OpName& row : foreign_op_names(system)) names.emplace_back(row.foreign);
  return names;
}

class PolicyReader {
 public:
  explicit PolicyReader(const PolicyText& source)
      : source_(source), problems_("policy '" + source.file_name + "'") {}

  Policy read() {
    const toml::table root_table = parse();
    TomlTable root(root_table, "", problems_);
    read_base(root);
    read_identity(root);
    if (auto t = root.table("storage")) read_storage(*t);
    if (auto t = root.table("model")) read_model(*t);
    if (auto t = root.table("autocast")) read_autocast(*t);
    if (auto t = root.table("gemm")) read_gemm(*t);
    if (auto t = root.table("dropout")) read_dropout(*t);
    if (auto t = root.table("attention")) read_attention(*t);
    if (auto t = root.table("softmax")) read_softmax(*t);
    if (auto t = root.table("recurrent")) read_recurrent(*t);
    if (auto t = root.table("scaling")) read_factor_scaling(*t, policy_.scaling);
    if (auto t = root.table("reduce")) read_reduce(*t);
    if (auto t = root.table("optimizer")) read_optimizer(*t);
    if (auto t = root.table("all_reduce")) read_all_reduce(*t);
    if (auto t = root.table("loss_scale")) read_loss_scale(*t);
    for (TomlTable& t : root.tables("rule")) read_rule(t);
    root.finish();
    problems_.throw_if_any();
    return policy_;
  }

 private:
  toml::table parse() {
    try {
      return toml::parse(source_.toml, source_.file_name);
    } catch (const toml::parse_error& error) {
      throw InputError("policy '" + source_.file_name + "': line " +
                           std::to_string(error.source().begin.line) +
                           ": not TOML: " + std::string(error.description()),
                       "docs/policy.md shows the layout");
    }
  }

  void read_base(TomlTable& root) {
    const Format& fp32 = find_format("fp32");
    const Accumulator& fused = find_accumulator("fp32_fused");
    policy_.weight = policy_.buffer = policy_.input = &fp32;
    policy_.gemm_accumulator = policy_.reduce_accumulator = &fused;
    policy_.optimizer_arithmetic = policy_.optimizer_state = policy_.master = &fp32;
    const auto base = root.text("extends");
    if (!base) return;
    try {
      policy_ = source_.find_base(*base);
      policy_.extends = policy_.label();
      policy_.extends_hash = policy_.hash();
      policy_.version = policy_.help = policy_.source = "";
      policy_.aliases.clear();
    } catch (const InputError& error) {
      root.problem("extends", error);
    }
  }

  void read_identity(TomlTable& root) {
    policy_.text = source_.toml;
    policy_.name = std::filesystem::path(source_.file_name).stem().string();
    if (auto name = root.text("name")) policy_.name = *name;
    // A name is used in lane lists, NAME:VERSION@TARGET,NAME,...
    if (policy_.name.empty() || policy_.name.find_first_of(":@,/ \t\n") != std::string::npos) {
      const std::string constraint =
          "'" + policy_.name + "': must not be empty or contain : @ , / or spaces";
      if (root.has("name")) {
        root.problem("name", "= " + constraint, "the default is the file's name without .toml");
      } else {
        problems_.add("name, by default the file's without .toml, " + constraint,
                      "add name = \"...\" or rename the file");
      }
    }
    const bool is_fixed_lane =
        policy_.name == "fp32" || policy_.name == kTruthLane || policy_.name == kTwinLane;
    if (!source_.is_preset && is_fixed_lane) {
      problems_.add("name = '" + policy_.name + "': belongs to a lane that is always the same",
                    "choose a name other than fp32, fp64 and twin");
    }
    policy_.version = root.text("version").value_or("");
    policy_.help = root.text("help").value_or("");
    policy_.source = root.text("source").value_or("");
    for (const auto& item : root.texts("aliases")) policy_.aliases.push_back(item.text);
    if (!source_.is_preset && root.has("aliases")) {
      root.problem("aliases", "has no effect: a policy file is found by its path", "remove it");
    }
  }

  // Lanes hold their values in FP32 containers: a wider format would not be held exactly.
  void read_format(TomlTable& table, std::string_view key, const Format*& format,
                   bool none_allowed = false) {
    const auto name = table.text(key);
    if (!name) return;
    if (none_allowed && *name == kNone) {
      format = nullptr;
      return;
    }
    try {
      const Format& found = find_format(*name);
      if (contains(find_format("fp32"), found)) {
        format = &found;
        const std::string hint = format_hint(*name);
        if (!hint.empty())
          policy_.notes.push_back(std::string(key) + " = '" + *name + "': " + hint);
      } else {
        table.problem(key, "= '" + *name + "': must fit in fp32, whose containers lanes use",
                      "for FP64 run the lane named fp64");
      }
    } catch (const InputError& error) {
      table.problem(key, error, format_hint(*name));
    }
  }

  // `find` is find_rounding, find_accumulator, ...: its error becomes a problem with a line.
  template <typename Find, typename Set>
  void read_name(TomlTable& table, std::string_view key, Find find, Set set) {
    const auto name = table.text(key);
    if (!name) return;
    try {
      set(find(*name));
    } catch (const InputError& error) {
      table.problem(key, error);
    }
  }

  void read_rounding(TomlTable& table, std::string_view key, Rounding& rounding) {
    read_name(table, key, find_rounding, [&](Rounding found) { rounding = found; });
  }
  void read_accumulator(TomlTable& table, const Accumulator*& accumulator) {
    read_name(table, "accumulator", find_accumulator,
              [&](const Accumulator& found) { accumulator = &found; });
  }
  // Sums without products exist as chains only.
  static const Accumulator& find_sum(std::string_view name) {
    const Accumulator& found = find_accumulator(name);
    if (found.adds()) return found;
    throw InputError("accumulator '" + found.name + "': forms sums of products only",
                     "[reduce] takes fp32_fused, fp16, bf16 and the other chains");
  }

  void read_storage(TomlTable& table) {
    read_format(table, "weight", policy_.weight);
    read_format(table, "buffer", policy_.buffer);
    read_format(table, "input", policy_.input);
    read_rounding(table, "rounding", policy_.rounding);
    if (auto stream = table.integer("stream")) {
      if (*stream >= 0 && *stream <= std::numeric_limits<uint32_t>::max()) {
        policy_.stream = static_cast<uint32_t>(*stream);
      } else {
        table.problem("stream", "= " + std::to_string(*stream) + ": must be in 0..2^32-1");
      }
    }
    read_ops(table, "keep_fp32", policy_.keep_fp32);
    table.finish();
  }

  // A list of forward ops. An empty list undoes what the extended policy says.
  void read_ops(TomlTable& table, std::string_view key, std::vector<std::string>& ops) {
    if (!table.has(key)) return;
    ops.clear();
    for (const auto& item : table.texts(key)) {
      if (!check_listed_op(table, key, item)) continue;
      for (std::string& op : lockstep_op_names(OpNames::kTorch, item.text)) {
        ops.push_back(std::move(op));
      }
    }
  }

  void read_model(TomlTable& table) {
    read_format(table, "input", policy_.model_input, /*none_allowed=*/true);
    read_format(table, "output", policy_.model_output, /*none_allowed=*/true);
    table.finish();
  }

  void read_autocast(TomlTable& table) {
    read_format(table, "format", policy_.low, /*none_allowed=*/true);
    read_name(
        table, "unlisted",
        [](const std::string& name) {
          std::vector<std::string> keys;
          for (const OpListKey& list : kOpLists) {
            if (list.key == name) return list.cast_class;
            keys.emplace_back(list.key);
          }
          throw InputError("unknown class of ops", did_you_mean(name, keys));
        },
        [&](CastClass found) { policy_.unlisted = found; });
    if (const auto cache = table.boolean("weight_cache")) policy_.weight_cache = *cache;
    OpNames names = OpNames::kTorch;
    read_name(table, "names", find_op_names, [&](OpNames found) { names = found; });
    std::map<std::string, std::string_view> listed;  // op -> list it stands in, in this file
    for (const OpListKey& list : kOpLists) {
      for (const auto& item : table.texts(list.key)) {
        if (!source_.is_preset && !check_listed_op(table, list.key, item, names)) continue;
        for (const std::string& op : lockstep_op_names(names, item.text)) {
          const auto [where, is_new] = listed.emplace(op, list.key);
          if (!is_new && where->second != list.key) {
            table.problem_at(item.line, list.key,
                             "has '" + item.text + "', which " + std::string(where->second) +
                                 " has, too: an op belongs to one class");
          }
          policy_.op_class[op] = list.cast_class;
        }
      }
    }
    table.finish();
    if (policy_.low == nullptr && !listed.empty()) {
      table.problem("", "has op lists but no format: there is nothing to cast to",
                    "add format = \"fp16\"");
    }
  }

  bool check_listed_op(TomlTable& table, std::string_view list, const TomlTable::Item& item,
                       OpNames system = OpNames::kTorch) {
    const std::vector<std::string> names = listable_ops(system);
    const std::string op = lockstep_op_names(system, item.text).front();
    if (std::find(names.begin(), names.end(), op) != names.end()) return true;
    table.problem_at(item.line, list, "has '" + item.text + "': no such forward op",
                     did_you_mean(item.text, names));
    return false;
  }

  void read_gemm(TomlTable& table) {
    read_format(table, "operand", policy_.gemm_operand, /*none_allowed=*/true);
    read_rounding(table, "operand_rounding", policy_.gemm_operand_rounding);
    read_ops(table, "operand_ops", policy_.gemm_operand_ops);
    if (table.has("operand_ops") && policy_.gemm_operand == nullptr) {
      table.problem("operand_ops", "has no effect: operand is none", "set operand = \"tf32\"");
    }
    // Said by the user's own file, it holds on hardware that would truncate, too.
    if (!source_.is_preset && table.has("operand_rounding")) {
      policy_.tf32_input = policy_.gemm_operand_rounding;
    }
    read_tf32_input(table);
    read_accumulator(table, policy_.gemm_accumulator);
    read_tf32_switch(table);
    table.finish();
  }

  // An accumulator that is said to round its TF32 inputs gets them so: the policy's cast is where
  // they form.
  void read_tf32_switch(TomlTable& table) {
    const Tf32Input input = policy_.gemm_accumulator->block.tf32_input;
    if (!table.has("accumulator") || input == Tf32Input::kTruncate ||
        policy_.gemm_operand != &find_format("tf32")) {
      return;
    }
    const Rounding rounding =
        input == Tf32Input::kNearestAway ? Rounding::kNearestAway : Rounding::kNearestEven;
    const bool is_told = table.has("tf32_input") || table.has("operand_rounding");
    if (is_told && policy_.gemm_operand_rounding != rounding) {
      table.problem("accumulator", "= '" + policy_.gemm_accumulator->name +
                                       "': operand_rounding or tf32_input " + "says " +
                                       std::string(to_string(policy_.gemm_operand_rounding)) +
                                       ", must be the same");
    }
    policy_.tf32_input = policy_.gemm_operand_rounding = rounding;
  }

  // operand and operand_rounding for TF32 in one word, which a hardware target does not override.
  void read_tf32_input(TomlTable& table) {
    const auto find = [](const std::string& name) {
      if (name == "nearest_away") return Rounding::kNearestAway;
      if (name == "nearest_even") return Rounding::kNearestEven;
      if (name == "truncate") return Rounding::kTowardZero;
      throw InputError("unknown way of forming TF32 inputs",
                       "nearest_away (cvt.rna), nearest_even, or truncate (raw FP32 registers)");
    };
    read_name(table, "tf32_input", find, [&](Rounding found) {
      policy_.tf32_input = policy_.gemm_operand_rounding = found;
      if (policy_.gemm_operand != &find_format("tf32")) {
        table.problem("tf32_input", "needs operand = \"tf32\"");
      }
      if (table.has("operand_rounding")) {
        table.problem("tf32_input", "and operand_rounding say the same thing, must be one of them");
      }
    });
  }

  void read_reduce(TomlTable& table) {
    read_name(table, "accumulator", find_sum,
              [&](const Accumulator& found) { policy_.reduce_accumulator = &found; });
    table.finish();
  }

  void read_optimizer(TomlTable& table) {
    policy_.master_weights = table.boolean("master_weights").value_or(policy_.master_weights);
    read_format(table, "master", policy_.master);
    read_format(table, "arithmetic", policy_.optimizer_arithmetic);
    read_format(table, "state", policy_.optimizer_state);
    read_name(table, "steps", find_steps,
              [&](OptimizerSteps found) { policy_.optimizer_steps = found; });
    read_name(table, "update_rounding", find_update_rounding,
              [&](UpdateRounding found) { policy_.update_rounding = found; });
    table.finish();
    if (table.has("master") && !policy_.master_weights) {
      table.problem("master", "has no effect: master_weights is false",
                    "set master_weights = true, or remove the key");
    }
    if (!policy_.master_weights) return;
    if (policy_.weight->is_fp32()) {
      table.problem("master_weights", "= true: weights are fp32 already and need no masters",
                    "set [storage] weight to a narrower format, or master_weights = false");
    } else if (!contains(*policy_.master, *policy_.weight)) {
      table.problem("master",
                    "= '" + policy_.master->name + "': must hold every " + policy_.weight->name +
                        " weight exactly",
                    "fp32 holds them all");
    }
  }

  void read_all_reduce(TomlTable& table) {
    AllReduce& reduce = policy_.all_reduce;
    read_format(table, "format", reduce.format, /*none_allowed=*/true);
    const auto one_of = [](const std::string& first, const std::string& second) {
      return [first, second](const std::string& name) {
        if (name == first || name == second) return name == first;
        throw InputError("'" + name + "': must be " + first + " or " + second);
      };
    };
    read_name(table, "order", one_of("ring", "tree"), [&](bool ring) {
      reduce.order = ring ? AllReduce::Order::kRing : AllReduce::Order::kTree;
    });
    read_name(table, "divide", one_of("before", "after"),
              [&](bool before) { reduce.divides_before = before; });
    table.finish();
  }

  void read_dropout(TomlTable& table) {
    const auto is_rounded = [](const std::string& name) {
      if (name == "exact" || name == "rounded") return name == "rounded";
      throw InputError("'" + name + "': must be exact or rounded");
    };
    read_name(table, "scale", is_rounded,
              [&](bool rounded) { policy_.rounds_dropout_scale = rounded; });
    table.finish();
  }

  void read_attention(TomlTable& table) {
    read_name(table, "flash", find_flash_kernel,
              [&](const FlashKernel& kernel) { policy_.flash_kernel = &kernel; });
    table.finish();
  }

  void read_softmax(TomlTable& table) {
    const auto is_cpu = [](const std::string& name) {
      if (name == "fused" || name == "torch_cpu") return name == "torch_cpu";
      throw InputError("'" + name + "': must be fused or torch_cpu");
    };
    read_name(table, "log", is_cpu, [&](bool cpu) { policy_.rounds_log_softmax = cpu; });
    table.finish();
  }

  void read_recurrent(TomlTable& table) {
    const auto find_cells = [](const std::string& name) {
      if (name == "fused") return RecurrentCells::kFused;
      if (name == "torch_cpu") return RecurrentCells::kTorchCpu;
      throw InputError("'" + name + "': must be fused or torch_cpu");
    };
    read_name(table, "cells", find_cells,
              [&](RecurrentCells found) { policy_.recurrent_cells = found; });
    table.finish();
  }

  static OptimizerSteps find_steps(const std::string& name) {
    if (name == "elementary") return OptimizerSteps::kElementary;
    if (name == "torch") return OptimizerSteps::kTorch;
    if (name == "torch_cpu") return OptimizerSteps::kTorchCpu;
    throw InputError("steps '" + name + "': unknown",
                     did_you_mean(name, {"elementary", "torch", "torch_cpu"}));
  }

  static UpdateRounding find_update_rounding(const std::string& name) {
    if (name == "nearest_even") return UpdateRounding::kNearestEven;
    if (name == "stochastic") return UpdateRounding::kStochastic;
    if (name == "kahan") return UpdateRounding::kKahan;
    throw InputError("update_rounding '" + name + "': unknown",
                     did_you_mean(name, {"nearest_even", "stochastic", "kahan"}));
  }

  // The loss is FP32: there a tiny factor is 0 and a huge one infinite.
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
    table.problem(key.name,
                  fmt::format("= {}: must be {} {} and {} {}, in FP32", shortest(*number),
                              key.least_allowed ? "at least" : "above", shortest(key.least),
                              key.most_allowed ? "at most" : "below", shortest(key.most)));
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
  static std::string shortest(double value) {
    std::ostringstream text;
    text << value;
    return text.str();
  }

  // A kind that the extended policy does not have begins with its own defaults.
  void read_loss_scale(TomlTable& table) {
    LossScaleSpec& spec = policy_.loss_scale;
    const LossScaler* scaler = &find_loss_scaler(spec.kind);
    bool kind_is_known = !table.has("kind");
    read_name(table, "kind", find_loss_scaler, [&](const LossScaler& found) {
      if (scaler != &found) {
        spec = found.defaults;
        policy_.loss_scale_use = {};
      }
      scaler = &found;
      kind_is_known = true;
    });
    for (const LossScaleKey& key : loss_scale_keys()) {
      std::visit([&](auto member) { read_number(table, key, spec.*member); }, key.member);
      if (table.has(key.name) && kind_is_known && !scaler->knows(key.name)) {
        refuse_key(table, key, *scaler);
      }
    }
    read_scale_use(table, kind_is_known ? scaler : nullptr);
    if (spec.min_scale > std::min(spec.init_scale, spec.max_scale)) {
      table.problem("min_scale",
                    fmt::format("= {}: must be at most init_scale = {} and max_scale = {}",
                                spec.min_scale, spec.init_scale, spec.max_scale));
    }
    table.finish();
  }

  // `scaler`: null where its kind is unknown.
  void read_scale_use(TomlTable& table, const LossScaler* scaler) {
    LossScaleUse& use = policy_.loss_scale_use;
    use.replay = table.boolean("replay").value_or(use.replay);
    if (const auto limit = table.integer("replay_limit")) {
      use.replay_limit = *limit;
      if (*limit < 2) {
        table.problem("replay_limit", "= " + std::to_string(*limit) + ": must be at least 2",
                      "the first attempt counts");
      }
      if (!use.replay) table.problem("replay_limit", "has no effect: replay is false");
    }
    const auto one_of = [](const std::string& normal, const std::string& other) {
      return [normal, other](const std::string& name) {
        if (name == normal || name == other) return name == other;
        throw InputError("'" + name + "': must be " + normal + " or " + other);
      };
    };
    read_name(table, "clip", one_of("after_unscale", "before_unscale"),
              [&](bool before) { use.clip_before_unscale = before; });
    read_name(table, "skip", one_of("step", "group"),
              [&](bool by_group) { use.skip_by_group = by_group; });
    read_name(table, "per_loss", one_of("shared", "separate"),
              [&](bool separate) { use.per_loss = separate; });
    if (use.per_loss.value_or(false) && use.clip_before_unscale) {
      const bool here = table.has("per_loss");
      table.problem(
          here ? "per_loss" : "clip",
          std::string(here ? "= \"separate\" with clip = \"before_unscale\""
                           : "= \"before_unscale\" with per_loss = \"separate\"") +
              ": gradients of several scales never are one gradient that could be clipped",
          "per_loss = \"shared\", or clip = \"after_unscale\"");
    }
    if (scaler == nullptr) return;
    const std::string kind = "kind is " + std::string(scaler->name);
    if (scaler->check == LossScaler::Check::kNone) {
      for (const std::string_view key : {"replay", "clip", "skip", "per_loss"}) {
        if (table.has(key)) table.problem(key, "has no effect: " + kind);
      }
    } else if (use.replay && !scaler->knows("growth_interval")) {
      table.problem("replay", "= true: " + kind + ", whose scale would overflow again",
                    "choose a kind whose scale moves");
    }
  }

  static void refuse_key(TomlTable& table, const LossScaleKey& key, const LossScaler& scaler) {
    std::vector<std::string> kinds;
    for (const LossScaler& other : loss_scalers()) {
      if (other.knows(key.name)) kinds.emplace_back(other.name);
    }
    table.problem(key.name, "has no effect: kind is " + std::string(scaler.name),
                  "kinds that take it: " + join(kinds, ", "));
  }

  void read_rule(TomlTable& table) {
    PolicyRule rule;
    rule.line = table.line();
    rule.layer = table.text("layer").value_or(rule.layer);
    rule.op = table.text("op").value_or(rule.op);
    rule.role = table.text("role").value_or(rule.role);
    rule.point = table.text("point").value_or(rule.point);
    check_literal(table, "op", rule.op, [](const std::string& name) { find_op(name); });
    check_literal(table, "role", rule.role, [](const std::string& name) { find_role(name); });
    check_literal(table, "point", rule.point, [](const std::string& name) { find_point(name); });
    read_format(table, "compute", rule.compute);
    if (const auto autocast = table.text("autocast")) {
      rule.autocast_off = *autocast == "off";
      if (!rule.autocast_off) table.problem("autocast", "= '" + *autocast + "': must be \"off\"");
      if (policy_.low == nullptr) {
        table.problem("autocast", "= \"off\" has no effect: the policy has no [autocast] format");
      }
    }
    read_format(table, "format", rule.format);
    read_name(table, "rounding", find_rounding, [&](Rounding found) { rule.rounding = found; });
    read_accumulator(table, rule.accumulator);
    read_layer_scale(table, rule);
    table.finish();
    check_rule(table, rule);
    policy_.rules.push_back(std::move(rule));
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

  // Powers of two lose nothing on the way in and out but to overflow and underflow.
  static void read_layer_scale(TomlTable& table, PolicyRule& rule) {
    rule.loss_scale = table.number("loss_scale");
    if (!rule.loss_scale) return;
    constexpr double kLeast = 0x1p-64, kMost = 0x1p64;
    const double scale = *rule.loss_scale;
    if (scale >= kLeast && scale <= kMost && std::exp2(std::ilogb(scale)) == scale) return;
    table.problem("loss_scale",
                  "= " + shortest(scale) + ": must be a power of two from 2^-64 to 2^64");
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
      table.problem("", "has compute and autocast: compute says the formats whatever the autocast",
                    "remove one of them");
    }
    if (of_ops && of_sites) {
      table.problem("",
                    "mixes compute, autocast, accumulator or loss_scale, which apply to ops, with "
                    "format or rounding, which apply to single values",
                    "write two rules");
    }
    if (of_ops && (table.has("role") || table.has("point"))) {
      table.problem(
          "",
          "has role or point, but compute, autocast, accumulator and loss_scale look at layer and "
          "op only",
          "remove role and point, or use format");
    }
    if (of_sites && rule.point == to_string(Point::kAccumulator)) {
      table.problem("point", "= 'accumulator': a sum's format belongs to its accumulator",
                    "use accumulator = \"fp16\" instead of format");
    }
  }

  const PolicyText& source_;
  ProblemList problems_;
  Policy policy_{};
};

}  // namespace

Policy read_policy(const PolicyText& source) {
  return PolicyReader(source).read();
}

}  // namespace lockstep
