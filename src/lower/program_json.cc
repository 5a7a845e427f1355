// The output of `lockstep explain --json`: the formats of a program's ops, for programs that
// compare them with another system's.
#include <nlohmann/json.hpp>

#include "src/graph/op.h"
#include "src/lower/product_recipe.h"
#include "src/lower/program_text.h"

namespace lockstep {
namespace {

using nlohmann::ordered_json;

std::string format_name(const Format* format) {
  return format != nullptr ? format->name : "int";
}

ordered_json op_json(const Program& program, const Instruction& i, const Node& node) {
  ordered_json inputs = ordered_json::array(), outputs = ordered_json::array();
  for (size_t k = 0; k < i.inputs.size(); ++k) {
    inputs.push_back(
        {{"value", node.inputs[k]}, {"as", format_name(program.values[i.inputs[k]].format)}});
  }
  for (size_t k = 0; k < i.outputs.size(); ++k) {
    outputs.push_back(
        {{"value", output_id(node, k)}, {"format", format_name(i.roundings[k].format)}});
  }
  ordered_json op = {{"node", node.id},  {"layer", node.layer},
                     {"op", node.op},    {"backward", node.is_backward()},
                     {"inputs", inputs}, {"outputs", outputs}};
  if (find_op(node.op).sums.of_products) op["accumulator"] = i.gemm_accumulator->name;
  if (const Format* inside = format_inside(i)) op["inside"] = inside->name;
  return op;
}

ordered_json recipe_json(const ProductRecipe& recipe) {
  ordered_json factors = ordered_json::array();
  for (const FactorRecipe& f : recipe.factors) {
    factors.push_back({{"operand", f.operand},
                       {"format", f.format},
                       {"granularity", f.granularity},
                       {"scale", f.scale},
                       {"rounding", f.rounding},
                       {"transform", f.transform}});
  }
  return {{"op", recipe.op},         {"product", std::string(to_string(recipe.product))},
          {"factors", factors},      {"sum", recipe.sum},
          {"result", recipe.result}, {"layers", recipe.layers}};
}

}  // namespace

std::string to_json(const Program& program, const Graph& step) {
  ordered_json values, ops = ordered_json::array();
  for (const auto& [id, value] : program.external) {
    values[id] = format_name(program.values[value].format);
  }
  for (const Instruction& i : program.instructions) {
    if (i.kind == InstructionKind::kOp) ops.push_back(op_json(program, i, step.nodes[i.node]));
  }
  ordered_json products = ordered_json::array();
  for (const ProductRecipe& recipe : product_recipes(program, step)) {
    products.push_back(recipe_json(recipe));
  }
  return ordered_json{
      {"model", step.name}, {"values", values}, {"ops", ops}, {"products", products}}
      .dump(1);
}

}  // namespace lockstep
