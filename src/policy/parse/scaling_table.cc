// Reads the keys one by one, then checks them together.
#include "src/policy/parse/scaling_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "src/core/find_row.h"
#include "src/core/text.h"
#include "src/graph/op.h"
#include "src/policy/parse/keys.h"

namespace lockstep {
namespace {

constexpr ScalingKindInfo kKinds[] = {
    {.kind = ScalingKind::kNone,
     .name = "none",
     .help = "factors keep the formats of [autocast] and [gemm]"},
    {.kind = ScalingKind::kUnit,
     .name = "unit",
     .help = "scale 1: shows the formats without scaling"},
    {.kind = ScalingKind::kCurrent,
     .name = "current",
     .help = "max_finite / amax of the tensor itself"},
    {.kind = ScalingKind::kDelayed,
     .name = "delayed",
     .help = "max_finite / amax of earlier steps"},
    {.kind = ScalingKind::kBlock,
     .name = "block",
     .help = "one scale per block of neighbours along the sum"},
};

constexpr ProductInfo kProductRows[] = {
    {.product = Product::kFprop, .name = "fprop", .help = "y = x w^T"},
    {.product = Product::kDgrad, .name = "dgrad", .help = "dx = dy w"},
    {.product = Product::kWgrad, .name = "wgrad", .help = "dw = dy^T x"},
};

FactorFormat find_factor_format(const std::string& name) {
  FactorFormat found;
  if (names_block_format(name)) {
    found.block = &find_block_format(name);
    found.element = found.block->element;
  } else {
    found.element = &find_format(name);
  }
  return found;
}

// The key "weight_blocks".
bool find_weight_blocks(const std::string& name) {
  if (name == "line") return false;
  if (name == "square") return true;
  throw InputError("weight_blocks '" + name + "': unknown", "line or square");
}

struct HadamardInfo {
  Hadamard hadamard;
  std::string_view name;
};
constexpr HadamardInfo kHadamards[] = {
    {Hadamard::kNone, "none"}, {Hadamard::kFixed, "fixed"}, {Hadamard::kDrawn, "drawn"}};

// The key "hadamard".
Hadamard find_hadamard(const std::string& name) {
  return find_row("hadamard", name, kHadamards).hadamard;
}

class ScalingReader {
 public:
  ScalingReader(TomlTable& table, FactorScaling& scaling) : table_(table), scaling_(scaling) {}

  void read() {
    const ScalingKind extended = scaling_.kind;
    read_name(table_, "kind", find_kind, scaling_.kind);
    if (scaling_.kind != extended) {  // another recipe: only the ops are kept
      FactorScaling fresh;
      fresh.kind = scaling_.kind;
      fresh.ops = scaling_.ops;
      scaling_ = std::move(fresh);
    }
    read_ops();
    read_formats();
    read_name(table_, "rounding", find_rounding, scaling_.activation.rounding);
    if (table_.has("rounding")) scaling_.weight.rounding = scaling_.activation.rounding;
    read_name(table_, "grad_rounding", find_rounding, scaling_.gradient.rounding);
    read_weight_blocks();
    read_current();
    read_delayed();
    read_products();
    read_block_scales();
    read_hadamard_seed();
    table_.finish();
    if (scaling_.kind == ScalingKind::kNone) {
      for (const char* key : {"ops", "operand", "grad_operand", "rounding", "grad_rounding",
                              "block_scale", "hadamard_seed"}) {
        if (table_.has(key)) report_no_effect(key, "unit, current, delayed or block");
      }
      return;
    }
    check_format(table_, "operand", scaling_.activation);
    check_format(table_, "grad_operand", scaling_.gradient);
    for (const std::string& op : scaling_.ops) check_op(op);
  }

 private:
  static ScalingKind find_kind(const std::string& name) {
    return find_row("kind", name, kKinds).kind;
  }

  void report_no_effect(std::string_view key, const std::string& kinds) {
    table_.problem(key, "has no effect: kind is " + std::string(to_string(scaling_.kind)),
                   "the key is for kind " + kinds + "; remove it");
  }

  void read_ops() {
    if (!table_.has("ops")) return;
    scaling_.ops.clear();
    for (const auto& item : table_.texts("ops")) {
      for (const std::string& op : lockstep_op_names(OpNames::kTorch, item.text)) {
        scaling_.ops.push_back(op);
      }
    }
    if (scaling_.ops.empty()) {
      table_.problem("ops", "is empty: nothing would be scaled", "remove it, or set kind = none");
    }
  }

  void read_formats() {
    FactorFormat operand, gradient;
    read_name(table_, "operand", find_factor_format, operand);
    read_name(table_, "grad_operand", find_factor_format, gradient);
    const auto take = [](FactorFormat& to, const FactorFormat& from) {
      to.element = from.element;
      to.block = from.block;
    };
    if (operand.element != nullptr) {
      take(scaling_.activation, operand);
      take(scaling_.weight, operand);
    }
    if (gradient.element != nullptr) take(scaling_.gradient, gradient);
  }

  void read_weight_blocks() {
    read_name(table_, "weight_blocks", find_weight_blocks, scaling_.weight.square);
    if (scaling_.kind == ScalingKind::kBlock) return;
    scaling_.weight.square = false;
    if (table_.has("weight_blocks")) report_no_effect("weight_blocks", "block");
  }

  void read_current() {
    CurrentScaling& current = scaling_.current;
    if (const auto power = table_.boolean("power_of_two")) current.power_of_two = *power;
    if (const auto epsilon = table_.number("amax_epsilon")) {
      current.amax_epsilon = static_cast<float>(*epsilon);
      if (!(current.amax_epsilon >= 0 && std::isfinite(current.amax_epsilon))) {
        table_.problem("amax_epsilon", "must be at least 0 and finite in FP32");
      }
    }
    if (scaling_.kind == ScalingKind::kCurrent) return;
    if (table_.has("power_of_two")) report_no_effect("power_of_two", "current");
    if (scaling_.kind != ScalingKind::kBlock && table_.has("amax_epsilon")) {
      report_no_effect("amax_epsilon", "current or block");
    }
  }

  // Scales of FP8 blocks other than the format's own.
  void read_block_scales() {
    if (scaling_.kind != ScalingKind::kBlock) {
      if (table_.has("block_scale") && scaling_.kind != ScalingKind::kNone) {
        report_no_effect("block_scale", "block");
      }
      return;
    }
    bool is_fp32 = scaling_.activation.fp32_scale;
    read_name(table_, "block_scale", second_of("format", "fp32"), is_fp32);
    const float epsilon = scaling_.current.amax_epsilon;
    // The scale of the smallest amax must be a finite FP32 number.
    constexpr float kLeastEpsilon = 1e-30f;
    if ((is_fp32 && epsilon == 0) || (epsilon > 0 && epsilon < kLeastEpsilon)) {
      table_.problem("amax_epsilon",
                     fmt::format("= {:g}: must be at least {:g}{}", epsilon, kLeastEpsilon,
                                 is_fp32 ? " with block_scale = \"fp32\"" : ", or 0"),
                     "torchao's is 1e-12");
    }
    const auto check = [&](const FactorFormat& format) {
      if ((!is_fp32 && epsilon == 0) || format.block == nullptr) return;
      constexpr int kFp8Bits = 8;
      if (format.block->scale == ScaleFormat::kE8m0 && format.block->rule == ScaleRule::kRceil &&
          format.block->element->storage_bits() == kFp8Bits) {
        return;
      }
      table_.problem(is_fp32 ? "block_scale" : "amax_epsilon",
                     "with " + format.block->name + ": needs FP8 blocks with scales rounded up",
                     "fp8_e4m3_block, fp8_e4m3_line, mxfp8_e4m3+rceil");
    };
    for (FactorFormat* format : {&scaling_.activation, &scaling_.weight, &scaling_.gradient}) {
      format->fp32_scale = is_fp32;
      format->amax_epsilon = epsilon;
      check(*format);
    }
    for (const ProductScaling& product : scaling_.products) {
      check(product.operand);
      check(product.gradient);
    }
  }

  void read_hadamard_seed() {
    const auto seed = table_.integer("hadamard_seed");
    if (!seed) return;
    if (*seed < 0) {
      table_.problem("hadamard_seed", "= " + std::to_string(*seed) + ": must be at least 0");
    }
    scaling_.hadamard_seed = static_cast<uint64_t>(*seed);
    const bool is_used = std::ranges::any_of(
        scaling_.products, [](const auto& p) { return p.hadamard == Hadamard::kDrawn; });
    if (!is_used && scaling_.kind != ScalingKind::kNone) {
      table_.problem("hadamard_seed", "has no effect: no product has hadamard = \"drawn\"");
    }
  }

  void read_products() {
    for (const ProductInfo& row : products()) {
      auto table = table_.table(row.name);
      if (!table) continue;
      ProductScaling& product = scaling_.products[static_cast<size_t>(row.product)];
      if (scaling_.kind == ScalingKind::kNone) {
        table_.problem(row.name, "has no effect: kind is none", "remove the table");
        continue;
      }
      read_product(*table, row.product, product);
      table->finish();
    }
  }

  void read_product(TomlTable& table, Product at, ProductScaling& product) {
    read_name(table, "kind", second_of("none", "same"), product.is_scaled);
    read_name(table, "operand", find_factor_format, product.operand);
    read_name(table, "grad_operand", find_factor_format, product.gradient);
    read_name(table, "rounding", find_rounding, product.rounding);
    read_name(table, "grad_rounding", find_rounding, product.grad_rounding);
    read_name(table, "weight_blocks", find_weight_blocks, product.weight_square);
    read_name(table, "hadamard", find_hadamard, product.hadamard);
    read_accumulator(table, product.accumulator);
    const bool by_blocks = scaling_.kind == ScalingKind::kBlock;
    const auto refuse = [&](std::string_view key, const std::string& why) {
      if (table.has(key)) table.problem(key, "has no effect: " + why, "remove it");
    };
    if (!product.is_scaled) {
      for (const char* key : {"operand", "grad_operand", "rounding", "grad_rounding",
                              "weight_blocks", "hadamard", "accumulator"}) {
        refuse(key, "kind is none: the product's factors are not scaled");
      }
      return;
    }
    if (at == Product::kFprop) {
      refuse("grad_operand", "fprop reads no gradient");
      refuse("grad_rounding", "fprop reads no gradient");
    }
    if (at == Product::kWgrad) refuse("weight_blocks", "wgrad reads no weight");
    if (!by_blocks) {
      for (const char* key : {"weight_blocks", "hadamard"}) {
        refuse(key, "kind is " + std::string(to_string(scaling_.kind)) + ", not block");
      }
    }
    for (const auto& [key, format] :
         {std::pair{"operand", &product.operand}, std::pair{"grad_operand", &product.gradient}}) {
      if (format->element != nullptr && table.has(key)) check_format(table, key, *format);
    }
  }

  // `least` and `most` inclusive.
  void read_integer(std::string_view key, int64_t least, int64_t most, int& value) {
    const auto number = table_.integer(key);
    if (!number) return;
    if (*number < least || *number > most) {
      table_.problem(key, "= " + std::to_string(*number) + ": must be in " + std::to_string(least) +
                              ".." + std::to_string(most));
      return;
    }
    value = static_cast<int>(*number);
  }
  void read_delayed() {
    constexpr int64_t kLongestHistory = 1 << 16;
    constexpr int64_t kWidestMargin = 64;  // FP8 has no numbers beyond it
    read_integer("amax_history", 1, kLongestHistory, scaling_.delayed.history_length);
    read_integer("margin", -kWidestMargin, kWidestMargin, scaling_.delayed.margin);
    read_name(table_, "amax_compute", find_amax_choice, scaling_.delayed.choice);
    if (scaling_.kind == ScalingKind::kDelayed) return;
    for (std::string_view key : {"amax_history", "margin", "amax_compute"}) {
      if (table_.has(key)) report_no_effect(key, "delayed");
    }
  }

  void check_format(TomlTable& table, std::string_view key, const FactorFormat& format) {
    if (format.element == nullptr) {
      table.problem(key, "is missing: kind " + std::string(to_string(scaling_.kind)) + " needs it",
                    "e.g. fp8_e4m3+saturate; block formats with kind = \"block\"");
      return;
    }
    const bool wants_block = scaling_.kind == ScalingKind::kBlock;
    if (wants_block != (format.block != nullptr)) {
      table.problem(key,
                    "= '" + format.name() + "': kind " + std::string(to_string(scaling_.kind)) +
                        (wants_block ? " takes block formats" : " takes formats without blocks"),
                    wants_block ? "mxfp8_e4m3+rceil, nvfp4, ...; lockstep list formats"
                                : "fp8_e4m3+saturate, fp8_e5m2+saturate, ...");
    } else if (constexpr int kWidest = 8; format.element->storage_bits() > kWidest) {
      table.problem(key, "= '" + format.name() + "': must be a format of at most 8 bits",
                    "set wider factors in [autocast] or [gemm]");
    }
  }

  void check_op(const std::string& name) {
    const auto all = ops();
    const OpDef* op = find_row_or_null(name, all);
    const bool by_blocks = scaling_.kind == ScalingKind::kBlock;
    std::vector<std::string> known;
    for (const OpDef& row : all) {
      if (takes_scaled_operands(row, by_blocks)) known.emplace_back(row.name);
    }
    if (op == nullptr) {
      table_.problem("ops", "has '" + name + "': no such op", did_you_mean(name, known));
    } else if (!takes_scaled_operands(*op, by_blocks)) {
      table_.problem("ops",
                     "has '" + name + "': its factors cannot be scaled by kind " +
                         std::string(to_string(scaling_.kind)),
                     "ops that can: " + join(known, ", "));
    }
  }

  // Ops that are one sum of products; blocks need factors that are matrices.
  static bool takes_scaled_operands(const OpDef& op, bool by_blocks) {
    return op.vjp != nullptr && op.sums.of_products && op.sums.are_shown &&
           op.sums.is_factor == nullptr && (!by_blocks || !op.sums.axes.empty());
  }

  TomlTable& table_;
  FactorScaling& scaling_;
};

}  // namespace

std::span<const ScalingKindInfo> scaling_kinds() {
  return kKinds;
}

std::string_view to_string(ScalingKind kind) {
  for (const ScalingKindInfo& row : kKinds) {
    if (row.kind == kind) return row.name;
  }
  return "?";
}

std::span<const ProductInfo> products() {
  return kProductRows;
}

std::string_view to_string(Product product) {
  return kProductRows[static_cast<size_t>(product)].name;
}

FactorFormat FactorScaling::factor(Product product, FactorRole role) const {
  const ProductScaling& own = of(product);
  const bool is_gradient = role == FactorRole::kGradient;
  FactorFormat to = is_gradient ? gradient : role == FactorRole::kWeight ? weight : activation;
  const FactorFormat& format = is_gradient ? own.gradient : own.operand;
  if (format.element != nullptr) to.element = format.element, to.block = format.block;
  to.rounding = (is_gradient ? own.grad_rounding : own.rounding).value_or(to.rounding);
  if (role == FactorRole::kWeight) to.square = own.weight_square.value_or(to.square);
  return to;
}

bool FactorScaling::is_uniform() const {
  return std::ranges::all_of(products, [](ProductScaling p) {
    p.accumulator = nullptr;
    return p == ProductScaling();
  });
}

std::string FactorFormat::name() const {
  return block == nullptr ? element->name : block->name + (square ? " squares" : "");
}

void read_factor_scaling(TomlTable& table, FactorScaling& scaling) {
  ScalingReader(table, scaling).read();
}

}  // namespace lockstep
