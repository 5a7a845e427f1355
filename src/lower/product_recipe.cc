// See product_recipe.h.
#include "src/lower/product_recipe.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>

#include "emulation/format/whole_line.h"
#include "src/core/text.h"
#include "src/graph/infer.h"
#include "src/graph/op.h"
#include "src/lower/product_of_node.h"

namespace lockstep {
namespace {

std::string granularity_of(const ScaledCast& cast) {
  if (cast.to.block == nullptr) return cast.kind == ScalingKind::kUnit ? "" : "tensor";
  const int size = cast.to.block->block_size;
  if (size == kWholeLine) return cast.to.square ? "tensor" : "line";
  return cast.to.square ? fmt::format("{0}x{0}", size) : fmt::format("1x{}", size);
}

std::string scale_of(const ScaledCast& cast) {
  const FactorFormat& to = cast.to;
  if (to.block != nullptr && to.has_own_scales()) {
    return fmt::format("{}, amax >= {:g}", to.fp32_scale ? "FP32" : "2^n, rceil", to.amax_epsilon);
  }
  if (to.block != nullptr) {
    return to.block->scale == ScaleFormat::kE4m3 ? "E4M3 under FP32"
                                                 : "2^n, " + std::string(to_string(to.block->rule));
  }
  switch (cast.kind) {
    case ScalingKind::kCurrent:
      return "FP32, its own amax";
    case ScalingKind::kDelayed:
      return "FP32, earlier amaxes";
    default:
      return "1";
  }
}

// "w" of a parameter, "dy" of a gradient, else "x".
std::string operand_name(const Graph& graph, const std::string& id) {
  if (graph.parameter_of(id) != nullptr) return "w";
  return is_gradient(graph, id) ? "dy" : "x";
}

class Recipes {
 public:
  Recipes(const Program& program, const Graph& graph) : program_(program), graph_(graph) {}

  std::vector<ProductRecipe> find() {
    std::vector<ProductRecipe> found;
    for (const Instruction& i : program_.instructions) {
      if (i.kind != InstructionKind::kOp || !is_product(i)) continue;
      ProductRecipe own = recipe_of(i);
      const auto same = std::ranges::find_if(
          found, [&](const ProductRecipe& row) { return row.same_recipe(own); });
      if (same == found.end()) {
        found.push_back(std::move(own));
      } else {
        same->layers.push_back(own.layers.front());
      }
    }
    std::ranges::stable_sort(found, {}, [](const ProductRecipe& row) { return row.product; });
    return found;
  }

 private:
  const Node& node_of(const Instruction& i) const {
    return graph_.nodes[static_cast<size_t>(i.node)];
  }
  bool is_product(const Instruction& i) const {
    const OpSums& sums = find_op(node_of(i).op).sums;
    return sums.of_products && sums.are_shown && sums.is_factor == nullptr;
  }

  ProductRecipe recipe_of(const Instruction& i) const {
    const Node& node = node_of(i);
    const OpDef& op = find_op(node.op);
    ProductRecipe row;
    row.op = node.is_backward() ? graph_.node(node.forward_node).op : node.op;
    row.product = product_of(graph_, node);
    for (size_t k = 0; k < 2; ++k) {
      row.factors[k] = factor_of(i, node, static_cast<size_t>(op.sums.operands.at(k)));
    }
    // dy first, then what it multiplies.
    if (row.factors[1].operand == "dy") std::swap(row.factors[0], row.factors[1]);
    row.sum = i.gemm_accumulator->name;
    if (i.sum_block > 0) row.sum += fmt::format(" per {}, added in fp32", i.sum_block);
    const Format* result = i.roundings.at(0).format;
    row.result = result != nullptr ? result->name : "";
    row.layers = {layer_of(graph_, node)};
    return row;
  }

  FactorRecipe factor_of(const Instruction& i, const Node& node, size_t operand) const {
    FactorRecipe factor;
    factor.operand = operand_name(graph_, node.inputs[operand]);
    const ProgramValue& value = program_.values[static_cast<size_t>(i.inputs[operand])];
    const Format* read = operand < i.factor_formats.size() ? i.factor_formats[operand] : nullptr;
    if (value.scaled_cast < 0) {
      const Format* format = read != nullptr ? read : value.format;
      factor.format = format != nullptr ? format->name : "";
      return factor;
    }
    const ScaledCast& cast = program_.scaled_casts[static_cast<size_t>(value.scaled_cast)];
    factor.format = cast.to.element->name;
    factor.granularity = granularity_of(cast);
    factor.scale = scale_of(cast);
    factor.rounding = to_string(cast.to.rounding);
    if (cast.rotates()) {
      factor.transform = fmt::format("Hadamard {}, {} signs", kHadamardSize,
                                     cast.hadamard == Hadamard::kFixed ? "fixed" : "drawn");
    }
    return factor;
  }

  const Program& program_;
  const Graph& graph_;
};

// "h.0.mlp.fc1 and 3 more"
std::string layers_text(const std::vector<std::string>& layers) {
  return layers.size() == 1 ? layers[0]
                            : fmt::format("{} and {} more", layers[0], layers.size() - 1);
}

}  // namespace

bool ProductRecipe::same_recipe(const ProductRecipe& other) const {
  return op == other.op && product == other.product && factors[0] == other.factors[0] &&
         factors[1] == other.factors[1] && sum == other.sum && result == other.result;
}

std::vector<ProductRecipe> product_recipes(const Program& program, const Graph& step) {
  return Recipes(program, step).find();
}

std::string recipe_table(const std::vector<ProductRecipe>& recipes) {
  std::set<std::pair<std::string, Product>> seen;
  const bool differ = std::ranges::any_of(recipes, [&](const ProductRecipe& recipe) {
    return !seen.emplace(recipe.op, recipe.product).second;
  });
  if (!differ && std::ranges::none_of(recipes, &ProductRecipe::is_scaled)) return "";
  constexpr size_t kColumns = 10;
  using Row = std::array<std::string, kColumns>;
  std::vector<Row> rows = {{"op", "product", "layers", "operand", "format", "shares a scale",
                            "scale", "rounding", "transform", "sum -> result"}};
  for (const ProductRecipe& recipe : recipes) {
    for (size_t k = 0; k < 2; ++k) {
      const FactorRecipe& f = recipe.factors[k];
      Row row{"", "", "", f.operand, f.format, f.granularity, f.scale, f.rounding, f.transform, ""};
      if (k == 0) {
        row[0] = recipe.op;
        row[1] = to_string(recipe.product);
        row[2] = layers_text(recipe.layers);
        row[9] = recipe.sum + " -> " + recipe.result;
      }
      rows.push_back(std::move(row));
    }
  }
  std::array<size_t, kColumns> widths{};
  for (const Row& row : rows) {
    for (size_t c = 0; c < kColumns; ++c) widths[c] = std::max(widths[c], row[c].size());
  }
  std::string text;
  for (const Row& row : rows) {
    std::string line;
    for (size_t c = 0; c < kColumns; ++c) {
      line += fmt::format("{}{:<{}}", c == 0 ? "" : "  ", row[c], widths[c]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

}  // namespace lockstep
