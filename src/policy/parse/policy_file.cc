// Reads a policy file from top to bottom: the policy it extends, its name, then table by table.
// A reader sets the keys it finds; the others keep their default or the extended policy's value.
// The tables with few keys are here. docs/policy.md lists the same keys.
#include "src/policy/parse/policy_file.h"

#include <fmt/format.h>

#include <filesystem>
#include <limits>

#include "src/core/text.h"
#include "src/policy/parse/autocast_table.h"
#include "src/policy/parse/keys.h"
#include "src/policy/parse/loss_scale_table.h"
#include "src/policy/parse/optimizer_table.h"
#include "src/policy/parse/rule_table.h"
#include "src/policy/parse/scaling_table.h"
#include "src/policy/parse/sums_table.h"
#include "src/policy/parse/toml_table.h"
#include "src/policy/parse/toml_text.h"
#include "src/policy/twin_lane.h"

namespace lockstep {
namespace {

void read_storage(TomlTable& table, Policy& policy) {
  read_format(table, "weight", policy.weight, policy.notes);
  read_format(table, "buffer", policy.buffer, policy.notes);
  read_format(table, "input", policy.input, policy.notes);
  if (const auto as_captured = table.boolean("as_captured")) {
    policy.formats_as_captured = *as_captured;
  }
  read_name(table, "rounding", find_rounding, policy.rounding);
  if (auto stream = table.integer("stream")) {
    if (*stream >= 0 && *stream <= std::numeric_limits<uint32_t>::max()) {
      policy.stream = static_cast<uint32_t>(*stream);
    } else {
      table.problem("stream", "= " + std::to_string(*stream) + ": must be in 0..2^32-1");
    }
  }
  read_ops(table, "keep_fp32", policy.keep_fp32);
  table.finish();
}

void read_model(TomlTable& table, Policy& policy) {
  read_format_or_none(table, "input", policy.model_input, policy.notes);
  read_format_or_none(table, "output", policy.model_output, policy.notes);
  table.finish();
}

void read_dropout(TomlTable& table, Policy& policy) {
  read_name(table, "scale", second_of("exact", "rounded"), policy.rounds_dropout_scale);
  table.finish();
}

void read_attention(TomlTable& table, Policy& policy) {
  read_name(
      table, "flash", [](const std::string& name) { return &find_flash_kernel(name); },
      policy.flash_kernel);
  table.finish();
}

void read_softmax(TomlTable& table, Policy& policy) {
  read_name(table, "log", second_of("fused", "torch_cpu"), policy.rounds_log_softmax);
  table.finish();
}

void read_recurrent(TomlTable& table, Policy& policy) {
  bool as_torch_cpu = policy.recurrent_cells == RecurrentCells::kTorchCpu;
  read_name(table, "cells", second_of("fused", "torch_cpu"), as_torch_cpu);
  policy.recurrent_cells = as_torch_cpu ? RecurrentCells::kTorchCpu : RecurrentCells::kFused;
  if (const auto threads = table.integer("threads")) {
    if (*threads >= 1 && *threads <= kMostCpuThreads) {
      policy.cpu_threads = static_cast<int>(*threads);
    } else {
      table.problem("threads", fmt::format("= {}: must be in 1..{}", *threads, kMostCpuThreads));
    }
  }
  table.finish();
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
    if (auto t = root.table("storage")) read_storage(*t, policy_);
    if (auto t = root.table("model")) read_model(*t, policy_);
    if (auto t = root.table("autocast")) read_autocast(*t, policy_, source_.is_preset);
    if (auto t = root.table("gemm")) read_gemm(*t, policy_, source_.is_preset);
    if (auto t = root.table("cuda")) read_cuda(*t, policy_);
    if (auto t = root.table("dropout")) read_dropout(*t, policy_);
    if (auto t = root.table("attention")) read_attention(*t, policy_);
    if (auto t = root.table("softmax")) read_softmax(*t, policy_);
    if (auto t = root.table("recurrent")) read_recurrent(*t, policy_);
    if (auto t = root.table("scaling")) read_factor_scaling(*t, policy_.scaling);
    if (auto t = root.table("reduce")) read_reduce(*t, policy_);
    if (auto t = root.table("optimizer")) read_optimizer(*t, policy_);
    if (auto t = root.table("accumulate")) read_accumulate(*t, policy_);
    if (auto t = root.table("all_reduce")) read_all_reduce(*t, policy_);
    if (auto t = root.table("loss_scale")) {
      read_loss_scale(*t, policy_.loss_scale, policy_.loss_scale_use);
    }
    for (TomlTable& t : root.tables("rule")) read_rule(t, policy_);
    root.finish();
    problems_.throw_if_any();
    return policy_;
  }

 private:
  toml::table parse() {
    return parse_toml(source_.toml, "policy '" + source_.file_name + "'",
                      "docs/policy.md shows the layout");
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
    const bool is_fixed_lane = policy_.name == kReferenceLane || policy_.name == kTruthLane ||
                               twin_number(policy_.name) > 0;
    if (!source_.is_preset && is_fixed_lane) {
      problems_.add("name = '" + policy_.name + "': this name belongs to a built-in lane",
                    "choose a name other than fp32, fp64 and twin");
    }
    policy_.version = root.text("version").value_or("");
    for (const auto& [key, text] :
         {std::pair{"name", policy_.name}, std::pair{"version", policy_.version}}) {
      if (printable(text) == text) continue;
      root.problem(key, "= '" + text + "': must have no control characters");
    }
    policy_.help = root.text("help").value_or("");
    policy_.source = root.text("source").value_or("");
    for (const auto& item : root.texts("aliases")) policy_.aliases.push_back(item.text);
    if (!source_.is_preset && root.has("aliases")) {
      root.problem("aliases", "has no effect: a policy file is found by its path", "remove it");
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
