// Writes the IR as JSON; json_reader.cc reads it.
#include "src/graph/json.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "src/graph/json_text.h"

namespace lockstep {
namespace {

using Json = nlohmann::ordered_json;

struct WriteAttribute {
  template <typename Value>
  Json operator()(const Value& value) const {
    return value;
  }
  Json operator()(double value) const {
    if (std::isnan(value)) return "nan";
    if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
    return value;
  }
};

Json attributes_json(const Attributes& attributes) {
  Json object = Json::object();
  for (const auto& [key, value] : attributes) object[key] = std::visit(WriteAttribute(), value);
  return object;
}

void add_type(Json& object, const TensorType& type) {
  object["shape"] = type.shape;
  object["dtype"] = type.element == ElementType::kFloat ? "f32" : "i32";
}

void add_format(Json& object, const std::string& format) {
  if (!format.empty()) object["format"] = format;
}

template <typename Range, typename Write>
Json list(const Range& range, Write write) {
  Json array = Json::array();
  for (const auto& item : range) array.push_back(write(item));
  return array;
}

Json type_json(const TensorType& type) {
  Json object;
  add_type(object, type);
  return object;
}

Json input_json(const GraphInput& input) {
  Json object = {{"id", input.id}, {"path", input.path}};
  add_type(object, input.type);
  add_format(object, input.format);
  if (input.requires_grad) object["requires_grad"] = true;
  return object;
}

Json parameter_json(const Parameter& parameter) {
  Json object = {{"name", parameter.name}};
  add_type(object, parameter.type);
  object["requires_grad"] = parameter.requires_grad;
  object["module"] = parameter.layer;
  add_format(object, parameter.format);
  return object;
}

Json buffer_json(const Buffer& buffer) {
  Json object = {{"name", buffer.name}};
  add_type(object, buffer.type);
  object["module"] = buffer.layer;
  add_format(object, buffer.format);
  return object;
}

Json constant_json(const Constant& constant) {
  Json object = {{"name", constant.name}};
  add_type(object, constant.type);
  if (constant.stat_exempt) object["stat_exempt"] = true;
  add_format(object, constant.format);
  return object;
}

Json node_json(const Node& node) {
  Json object = {{"id", node.id},
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

Json mutation_json(const Mutation& mutation) {
  const auto [value, slot] = split_value_id(mutation.value);
  return {{"buffer", mutation.buffer}, {"value", value}, {"slot", slot}};
}

Json pass_json(const BackwardPass& pass) {
  return {
      {"name", pass.name}, {"loss", pass.loss}, {"seed", pass.seed}, {"gradients", pass.gradients}};
}

}  // namespace

std::string to_json(const Graph& graph) {
  Json object = {{"ir", kIrVersion},
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
