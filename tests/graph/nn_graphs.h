// Graphs of one op on parameters, for the tests of losses, attention and recurrent layers.
#pragma once

#include <string>
#include <vector>

#include "src/graph/builder.h"

namespace lockstep::testing {

// An operand: a parameter, or an integer input.
struct Operand {
  Shape shape;
  bool is_int = false;
};

// loss = sum over the given outputs of mse(output, an input), so that the gradients that reach the
// op are general.
inline Graph op_graph(std::string_view op, const std::vector<Operand>& operands,
                      const Attributes& attributes, size_t outputs = 1) {
  GraphBuilder b("op");
  std::vector<Value> values;
  for (size_t i = 0; i < operands.size(); ++i) {
    const std::string name = "w" + std::to_string(i);
    values.push_back(operands[i].is_int ? b.input(name, {operands[i].shape, ElementType::kInt})
                                        : b.parameter(name, operands[i].shape));
  }
  const Node node = b.graph().node(b.op(op, values, attributes, "layer"));
  Value loss;
  for (size_t k = 0; k < outputs; ++k) {
    const Value target = b.input("target" + std::to_string(k), node.outputs[k]);
    const Value term = b.op("mse_loss", {output_id(node, k), target}, {}, "loss");
    loss = k == 0 ? term : b.op("add", {loss, term}, {}, "loss");
  }
  b.set_loss(loss);
  return b.finish();
}

// x, the states, and the weights of `layers` layers with 3 inputs and 2 hidden values.
inline std::vector<Operand> recurrent_operands(bool lstm, int64_t layers, int64_t directions,
                                               bool bias) {
  const int64_t gates = lstm ? 8 : 6;
  std::vector<Operand> operands = {{{2, 3, 3}}};
  operands.insert(operands.end(), lstm ? 2 : 1, {{layers * directions, 2, 2}});
  for (int64_t cell = 0; cell < layers * directions; ++cell) {
    operands.push_back({{gates, cell < directions ? 3 : 2 * directions}});
    operands.push_back({{gates, 2}});
    if (bias) operands.insert(operands.end(), 2, {{gates}});
  }
  return operands;
}

}  // namespace lockstep::testing
