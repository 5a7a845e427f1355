// One op on raw arrays, forward and backward, so that another program (PyTorch) can be compared
// with it. Knows ops only through their rows: any op of `lockstep list ops`, any attributes.
//
//   lockstep_op_tool DIR      reads  DIR/request.json, DIR/x0, DIR/x1, ... (one per operand) and,
//                                    if a gradient flows into output k, DIR/dyk
//                             writes DIR/y0, DIR/y1, ..., DIR/dx0, ... (operands that have one) and
//                                    DIR/reply.json with the outputs' shapes
//   request.json  {"op": "mul", "attributes": {...}, "container": "fp32" | "fp64",
//                  "policy": "fp32", "seed": 0, "step": 0,
//                  "operands": [{"shape": [2, 3], "dtype": "f32" | "i32",
//                                "constant": true for a float without a gradient}, ...]}
// All arrays are raw little-endian, row-major: doubles or floats (by the container), or int32.
// Gradients are those of loss = sum over outputs k of sum(yk * dyk).
#include <fmt/format.h>

#include <cmath>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>

#include "src/core/error.h"
#include "src/core/text.h"
#include "src/core/text_file.h"
#include "src/execute/step_runner.h"
#include "src/graph/autodiff.h"
#include "src/graph/builder.h"
#include "src/policy/find_policy.h"
#include "src/policy/policy.h"

namespace lockstep {
namespace {

using Json = nlohmann::json;

Attribute attribute_of(const Json& value) {
  if (value.is_boolean()) return value.get<bool>();
  if (value.is_number_integer()) return value.get<int64_t>();
  if (value.is_number_float()) return value.get<double>();
  if (value.is_array()) return value.get<std::vector<int64_t>>();
  const auto text = value.get<std::string>();
  if (text == "inf" || text == "-inf") return text == "inf" ? HUGE_VAL : -HUGE_VAL;
  return text;
}

Tensor read_raw(const std::string& path, const Shape& shape, Container container) {
  Tensor tensor(shape, container);
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) throw InputError("'" + path + "': cannot be read");
  if (file.tellg() != static_cast<std::streamoff>(tensor.bytes())) {
    throw InputError(fmt::format("'{}': {} bytes, {} required for shape {}", path,
                                 static_cast<int64_t>(file.tellg()), tensor.bytes(),
                                 to_string(shape)));
  }
  file.seekg(0);
  file.read(static_cast<char*>(tensor.raw()), static_cast<std::streamsize>(tensor.bytes()));
  return tensor;
}

void write_raw(const std::string& path, const Tensor& tensor) {
  std::ofstream file(path, std::ios::binary);
  file.write(static_cast<const char*>(tensor.raw()), static_cast<std::streamsize>(tensor.bytes()));
  if (!file) throw InputError("'" + path + "': cannot be written");
}

bool exists(const std::string& path) {
  return std::ifstream(path).good();
}

// The op, with every floating operand that is not a constant as a parameter, and a loss if some
// output has a cotangent.
Graph make_graph(const Json& request, const std::string& directory) {
  GraphBuilder builder("op");
  std::vector<Value> operands;
  for (const Json& operand : request.at("operands")) {
    const std::string name = "x" + std::to_string(operands.size());
    const auto shape = operand.at("shape").get<Shape>();
    if (operand.at("dtype") == "i32") {
      operands.push_back(builder.input(name, {shape, ElementType::kInt}));
    } else if (operand.value("constant", false)) {
      operands.push_back(builder.input(name, {shape}));
    } else {
      operands.push_back(builder.parameter(name, shape));
    }
  }
  Attributes attributes;
  for (const auto& [name, value] : request.at("attributes").items()) {
    attributes[name] = attribute_of(value);
  }
  const Value y = builder.op(request.at("op").get<std::string>(), operands, attributes, "op");
  const Node node = builder.graph().node(y);
  Value loss;
  for (size_t k = 0; k < node.outputs.size(); ++k) {
    const std::string number = std::to_string(k);
    builder.name_output("y" + number, output_id(node, k));
    if (!exists(directory + "/dy" + number)) continue;
    const Value dy = builder.input("dy" + number, node.outputs[k]);
    const Value product = builder.op("mul", {output_id(node, k), dy}, {}, "loss");
    const Value term = builder.op("sum", {product}, {}, "loss");
    loss = loss.empty() ? term : builder.op("add", {loss, term}, {}, "loss");
  }
  // Without a cotangent there is nothing to differentiate, but every graph needs a floating loss.
  const bool is_mask = node.outputs[0].element == ElementType::kInt;
  const Value summed = is_mask ? operands.front() : y;
  builder.set_loss(loss.empty() ? builder.op("sum", {summed}, {}, "loss") : loss);
  const Graph graph = builder.finish();
  return loss.empty() ? graph : differentiate(graph);
}

void run(const std::string& directory) {
  const Json request = Json::parse(std::ifstream(directory + "/request.json"));
  const Container container = request.at("container") == "fp64" ? Container::kF64 : Container::kF32;
  const Graph graph = make_graph(request, directory);
  const SiteTable sites = make_sites(graph, 0);
  const Policy& policy = find_policy(request.value("policy", "fp32"));
  StepRunner runner(graph, sites, policy, {.container = container});
  std::map<std::string, Tensor> parameters;
  for (const Parameter& p : graph.parameters) {
    parameters[p.name] = read_raw(directory + "/" + p.name, p.type.shape, container);
    runner.bind_parameter(p.name, parameters[p.name]);
  }
  Batch batch;
  for (const GraphInput& input : graph.inputs) {
    if (is_seed(input.id)) continue;
    const bool is_int = input.type.element == ElementType::kInt;
    batch[input.path] = read_raw(directory + "/" + input.path, input.type.shape,
                                 is_int ? Container::kI32 : container);
  }
  const ExecutionKey key{request.value("seed", uint64_t{0}), 0, request.value("step", uint64_t{0})};
  runner.begin({.key = key, .loss_scales = {1}}, batch);
  runner.run_all();
  Json reply = Json::object();
  for (const auto& [name, id] : graph.outputs) {
    const Tensor& value = runner.values().of(id);
    write_raw(directory + "/" + name, value);
    reply[name] = {{"shape", value.shape()},
                   {"dtype", value.container() == Container::kI32 ? "i32" : "f32"}};
  }
  for (const auto& [name, id] : graph.gradients) {
    write_raw(directory + "/d" + name, runner.gradient(name));
  }
  write_text_file_atomically(directory + "/reply.json", reply.dump());
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: lockstep_op_tool DIR\n";
    return 2;
  }
  try {
    lockstep::run(argv[1]);
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 2;
  }
  return 0;
}
