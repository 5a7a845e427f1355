// One op: the types its shape rule gives, the rule's refusals, and the op's outputs in FP64.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "src/graph/builder.h"
#include "src/graph/infer.h"
#include "tests/graph/run_graph.h"
#include "tests/support/refusal.h"

namespace lockstep::testing {

inline TensorType floats(Shape shape) {
  return {std::move(shape)};
}
inline TensorType ints(Shape shape) {
  return {std::move(shape), ElementType::kInt};
}

inline std::vector<TensorType> infer(std::string_view op, const std::vector<TensorType>& inputs,
                                     Attributes attributes = {}) {
  Node node;
  node.id = "n0";
  node.op = op;
  node.attributes = std::move(attributes);
  return infer_outputs(node, inputs);
}

// The error text of an op's shape rule; "" if the rule accepts.
inline std::string refusal(std::string_view op, const std::vector<TensorType>& inputs,
                           const Attributes& attributes = {}) {
  return error_of([&] { infer(op, inputs, attributes); });
}

// All outputs of the op; operands: kF64 or kI32.
inline std::vector<Tensor> run_op(std::string_view op, const std::vector<Tensor>& operands,
                                  const Attributes& attributes = {}) {
  GraphBuilder b("one");
  Values values;
  std::vector<Value> ids;
  for (const Tensor& operand : operands) {
    const bool is_int = operand.container() == Container::kI32;
    ids.push_back(
        b.input("x", {operand.shape(), is_int ? ElementType::kInt : ElementType::kFloat}));
    values[ids.back()] = operand;
  }
  const Value y = b.op(op, ids, attributes, "");
  const Graph graph = b.finish();
  values = run_graph(graph, values);
  std::vector<Tensor> outputs;
  const Node& node = graph.node(y);
  for (size_t k = 0; k < node.outputs.size(); ++k) outputs.push_back(values.at(output_id(node, k)));
  return outputs;
}

inline std::vector<double> numbers(const Tensor& tensor) {
  const auto values = tensor.as<double>();
  return {values.begin(), values.end()};
}

}  // namespace lockstep::testing
