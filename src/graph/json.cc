// Writes the IR as JSON; json_reader.cc reads it.
#include "src/graph/json.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "src/graph/json_text.h"

namespace lockstep {
namespace {

using OrderedJson = nlohmann::ordered_json;

struct WriteAttribute {
  template <typename Value>
  OrderedJson operator()(const Value& value) const {
    return value;
  }
  OrderedJson operator()(double value) const {
    if (std::isnan(value)) return "nan";
    if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
    return value;
  }
};

OrderedJson attributes_json(const Attributes& attributes) {
  OrderedJson object = OrderedJson::object();
  for (const auto& [key, value] : attributes) object[key] = std::visit(WriteAttribute(), value);
  return object;
}

void add_type(OrderedJson& object, const TensorType& type) {
  object["shape"] = type.shape;
  object["dtype"] = type.element == ElementType::kFloat ? "f32" : "i32";
}

void add_format(OrderedJson& object, const std::string& format) {
  if (!format.empty()) object["format"] = format;
}

template <typename Range, typename Write>
OrderedJson list(const Range& range, Write write) {
  OrderedJson array = OrderedJson::array();
  for (const auto& item : range) array.push_back(write(item));
  return array;
}

OrderedJson type_json(const TensorType& type) {
  OrderedJson object;
  add_type(object, type);
  return object;
}

OrderedJson input_json(const GraphInput& input) {
  OrderedJson object = {{"id", input.id}, {"path", input.path}};
  add_type(object, input.type);
  add_format(object, input.format);
  return object;
}

OrderedJson parameter_json(const Parameter& parameter) {
  OrderedJson object = {{"name", parameter.name}};
  add_type(object, parameter.type);
  object["requires_grad"] = parameter.requires_grad;
  object["module"] = parameter.layer;
  add_format(object, parameter.format);
  return object;
}

OrderedJson buffer_json(const Buffer& buffer) {
  OrderedJson object = {{"name", buffer.name}};
  add_type(object, buffer.type);
  object["module"] = buffer.layer;
  add_format(object, buffer.format);
  return object;
}

OrderedJson constant_json(const Constant& constant) {
  OrderedJson object = {{"name", constant.name}};
  add_type(object, constant.type);
  if (constant.stat_exempt) object["stat_exempt"] = true;
  add_format(object, constant.format);
  return object;
}

OrderedJson node_json(const Node& node) {
  OrderedJson object = {{"id", node.id},
                        {"op", node.op},
                        {"in", node.inputs},
                        {"attrs", attributes_json(node.attributes)},
                        {"out", list(node.outputs, type_json)},
                        {"module", node.layer},
                        {"src", node.source_line}};
  if (!node.torch_op.empty()) object["aten"] = node.torch_op;
  if (node.autocast != AutocastRegion::kUnsaid) {
    object["autocast"]["enabled"] = node.autocast == AutocastRegion::kOn;
  }
  if (node.no_grad) object["nograd"] = true;
  if (node.stat_exempt) object["stat_exempt"] = true;
  if (node.backward != nullptr) {
    object["backward"] = {{"nodes", list(node.backward->nodes, node_json)},
                          {"gradients", node.backward->gradients}};
  }
  if (node.is_backward()) {
    object["forward_node"] = node.forward_node;
    object["gradient_of"] = node.gradient_of;
    if (node.pass != 0) object["pass"] = node.pass;
  }
  return object;
}

OrderedJson mutation_json(const Mutation& mutation) {
  const auto [value, slot] = split_value_id(mutation.value);
  return {{"buffer", mutation.buffer}, {"value", value}, {"slot", slot}};
}

OrderedJson pass_json(const BackwardPass& pass) {
  return {
      {"name", pass.name}, {"loss", pass.loss}, {"seed", pass.seed}, {"gradients", pass.gradients}};
}

}  // namespace

std::string to_json(const Graph& graph) {
  OrderedJson object = {{"ir", kIrVersion},
                        {"name", graph.name},
                        {"inputs", list(graph.inputs, input_json)},
                        {"params", list(graph.parameters, parameter_json)},
                        {"buffers", list(graph.buffers, buffer_json)}};
  if (!graph.constants.empty()) object["constants"] = list(graph.constants, constant_json);
  object["nodes"] = list(graph.nodes, node_json);
  object["loss"] = graph.loss;
  object["outputs"] = graph.outputs;
  object["mutations"] = list(graph.mutations, mutation_json);
  if (!graph.gradients.empty()) object["gradients"] = graph.gradients;
  if (!graph.passes.empty()) object["passes"] = list(graph.passes, pass_json);
  return json_lines(object);
}

}  // namespace lockstep
