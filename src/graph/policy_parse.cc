// One function per table of the file, each setting what its keys say and leaving the rest as it
// was: at its default, or as the policy it extends has it. docs/policy.md lists the same keys.
#include "src/graph/policy_parse.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <limits>
#include <sstream>

#include "src/graph/site.h"
#include "src/graph/toml_table.h"
#include "src/graph/torch_op_names.h"

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

// What a policy file may name in its lists: forward ops, and torch's names for them.
std::vector<std::string> listable_ops() {
  std::vector<std::string> names;
  for (const OpDef& op : ops()) {
    if (op.vjp != nullptr) names.emplace_back(op.name);
  }
  for (const TorchOpName& row : torch_op_names()) names.emplace_back(row.torch);
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
    if (auto t = root.table("autocast")) read_autocast(*t);
    if (auto t = root.table("gemm")) read_gemm(*t);
    if (auto t = root.table("reduce")) read_reduce(*t);
    if (auto t = root.table("optimizer")) read_optimizer(*t);
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
    std::map<std::string, std::string_view> listed;  // op -> list it stands in, in this file
    for (const OpListKey& list : kOpLists) {
      for (const auto& item : table.texts(list.key)) {
        const std::string op = lockstep_op_name(item.text);
        if (!source_.is_preset && !check_listed_op(table, list.key, item)) continue;
        const auto [where, is_new] = listed.emplace(op, list.key);
        if (!is_new && where->second != list.key) {
          table.problem_at(item.line, list.key,
                           "has '" + item.text + "', which " + std::string(where->second) +
                               " has, too: an op belongs to one class");
        }
        policy_.op_class[op] = list.cast_class;
      }
    }
    table.finish();
    if (policy_.low == nullptr && !listed.empty()) {
      table.problem("", "has op lists but no format: there is nothing to cast to",
                    "add format = \"fp16\"");
    }
  }

  bool check_listed_op(TomlTable& table, std::string_view list, const TomlTable::Item& item) {
    const std::vector<std::string> names = listable_ops();
    const std::string op = lockstep_op_name(item.text);
    if (std::find(names.begin(), names.end(), op) != names.end()) return true;
    table.problem_at(item.line, list, "has '" + item.text + "': no such forward op",
                     did_you_mean(item.text, names));
    return false;
  }

  void read_gemm(TomlTable& table) {
    read_format(table, "operand", policy_.gemm_operand, /*none_allowed=*/true);
    read_rounding(table, "operand_rounding", policy_.gemm_operand_rounding);
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

  static UpdateRounding find_update_rounding(const std::string& name) {
    if (name == "nearest_even") return UpdateRounding::kNearestEven;
    if (name == "stochastic") return UpdateRounding::kStochastic;
    if (name == "kahan") return UpdateRounding::kKahan;
    throw InputError("update_rounding '" + name + "': unknown",
                     did_you_mean(name, {"nearest_even", "stochastic", "kahan"}));
  }

  // A positive number that FP32, which scalers compute in, can hold.
  void read_factor(TomlTable& table, std::string_view key, double above, double below,
                   double& value) {
    const auto number = table.number(key);
    if (!number) return;
    // Scalers compute in FP32, where a tiny number is 0 and a huge one infinite.
    const double held = static_cast<float>(*number);
    if (held > above && held < below && std::isfinite(held)) {
      value = *number;
      return;
    }
    const std::string text = "= " + shortest(*number) + ": must be above " + shortest(above) +
                             " and below " + shortest(below) + ", in FP32";
    table.problem(key, text);
  }
  static std::string shortest(double value) {
    std::ostringstream text;
    text << value;
    return text.str();
  }

  // The kind is looked up by whoever makes the scaler: the table of kinds lives with the lanes.
  void read_loss_scale(TomlTable& table) {
    LossScaleSpec& spec = policy_.loss_scale;
    if (auto kind = table.text("kind")) spec.kind = *kind;
    const double above_fp32 = 2 * 0x1p127;  // 2^128: the first power of two that FP32 lacks
    read_factor(table, "init_scale", 0, above_fp32, spec.init_scale);
    read_factor(table, "growth_factor", 1, above_fp32, spec.growth_factor);
    read_factor(table, "backoff_factor", 0, 1, spec.backoff_factor);
    if (auto interval = table.integer("growth_interval")) {
      if (*interval < 1) {
        table.problem("growth_interval", "= " + std::to_string(*interval) + ": must be at least 1");
      }
      spec.growth_interval = *interval;
    }
    if (spec.kind == kNone) {
      for (std::string_view key :
           {"init_scale", "growth_factor", "backoff_factor", "growth_interval"}) {
        if (table.has(key)) {
          table.problem(key, "has no effect: kind is none",
                        "set kind to static or torch-dynamic, or remove the key");
        }
      }
    }
    table.finish();
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
    read_format(table, "format", rule.format);
    read_name(table, "rounding", find_rounding, [&](Rounding found) { rule.rounding = found; });
    read_accumulator(table, rule.accumulator);
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

  void check_rule(TomlTable& table, const PolicyRule& rule) {
    const bool of_ops = table.has("compute") || table.has("accumulator");
    const bool of_sites = table.has("format") || table.has("rounding");
    if (!of_ops && !of_sites) {
      table.problem("", "sets nothing", "give compute, format, rounding or accumulator");
    }
    if (of_ops && of_sites) {
      table.problem("",
                    "mixes compute or accumulator, which apply to ops, with format or rounding, "
                    "which apply to single values",
                    "write two rules");
    }
    if (of_ops && (table.has("role") || table.has("point"))) {
      table.problem("", "has role or point, but compute and accumulator look at layer and op only",
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
