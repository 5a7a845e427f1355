// One forward and backward pass of a built-in model on weights and a batch read from raw files, so
// that another program (PyTorch) can be compared with it. Knows no optimizer.
//
//   lockstep_step_tool --describe MODEL [NAME=X ...]   one line per parameter, buffer, input, mask,
//                                                      masks drawn inside an op
//   lockstep_step_tool MODEL DIR fp64|POLICY [NAME=X ...]   POLICY: a lane with FP32 weights
//       reads  DIR/p_NAME, DIR/b_NAME, DIR/in_PATH, DIR/mask_NODE   (f64, f32 or i32)
//       writes DIR/loss.txt, DIR/g_NAME, DIR/m_NAME (buffers after the step), DIR/drawn_NODE
// NAME=X: batch=N, image=C,H,W, classes=N, or a size of the model. Every dropout node reads its
// mask from a file; an op with dropout inside draws its masks, which are written to drawn_NODE
// (i32). All files are raw little-endian, row-major.
#include <fmt/format.h>

#include <fstream>
#include <iostream>
#include <span>

#include "src/core/error.h"
#include "src/core/text.h"
#include "src/core/text_file.h"
#include "src/execute/step_runner.h"
#include "src/graph/autodiff.h"
#include "src/models/model.h"
#include "src/policy/find_policy.h"

namespace lockstep {
namespace {

struct Request {
  std::string model;
  ModelShape shape{2, {1, 28, 28}, 10};
};

Request parse_request(const std::string& model, std::span<const std::string> words) {
  Request request{model};
  ModelSizes sizes;
  for (const std::string& word : words) {
    const size_t equals = word.find('=');
    const std::string name = word.substr(0, equals), value = word.substr(equals + 1);
    if (name == "batch") {
      request.shape.batch = std::stoll(value);
    } else if (name == "classes") {
      request.shape.classes = std::stoll(value);
    } else if (name == "image") {
      request.shape.image.clear();
      for (const std::string& extent : split(value, ',')) {
        request.shape.image.push_back(std::stoll(extent));
      }
    } else {
      sizes[name] = std::stod(value);
    }
  }
  request.shape.sizes = complete_sizes(find_model(model), sizes);
  return request;
}

// The forward graph with an input for every dropout's mask, path "mask_NODE".
Graph with_masks(Graph graph) {
  for (Node& node : graph.nodes) {
    if (node.op != "dropout") continue;
    const std::string id = "in" + std::to_string(graph.inputs.size());
    graph.inputs.push_back({id, "mask_" + node.id, {node.outputs[0].shape, ElementType::kInt}});
    node.inputs.push_back(id);
  }
  return graph;
}

Graph step_graph(const Request& request) {
  return differentiate(
      with_masks(find_model(request.model).build(request.shape, /*training=*/true)));
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

std::string extents(const Shape& shape) {
  std::vector<std::string> words;
  for (const int64_t extent : shape) words.push_back(std::to_string(extent));
  return words.empty() ? "-" : join(words, ",");
}

// The output of a recurrent node that holds the masks it drew between its layers; -1: none.
int drawn_masks(const Node& node) {
  if (node.op != "lstm" && node.op != "gru") return -1;
  for (size_t i = 0; i < node.outputs.size(); ++i) {
    if (node.outputs[i].element == ElementType::kInt) return static_cast<int>(i);
  }
  return -1;
}

void describe(const Request& request) {
  const Graph graph = step_graph(request);
  for (const Parameter& p : graph.parameters) {
    fmt::print("p {} {}\n", p.name, extents(p.type.shape));
  }
  for (const Buffer& b : graph.buffers) fmt::print("b {} {}\n", b.name, extents(b.type.shape));
  for (const GraphInput& input : graph.inputs) {
    if (is_seed(input.id)) continue;
    fmt::print("in {} {} {}\n", input.path, extents(input.type.shape),
               input.type.element == ElementType::kInt ? "i32" : "float");
  }
  for (const Node& node : graph.nodes) {
    if (node.op == "dropout") fmt::print("mask mask_{} {}\n", node.id, node.layer);
    const int drawn = drawn_masks(node);
    if (drawn < 0) continue;
    fmt::print("drawn {} {}\n", node.id, extents(node.outputs[static_cast<size_t>(drawn)].shape));
  }
}

void run(const Request& request, const std::string& directory, const std::string& lane) {
  const bool is_fp64 = lane == kTruthLane;
  const Graph graph = step_graph(request);
  const SiteTable sites = make_sites(graph, 0);
  const Container container = is_fp64 ? Container::kF64 : Container::kF32;
  const Policy policy = find_policy(is_fp64 ? "fp32" : lane);
  for (const Format* format : {policy.weight, policy.buffer, policy.input}) {
    if (format->name != "fp32") {
      throw InputError("'" + lane + "' stores " + std::string(format->name) +
                       ", must store weights, buffers and inputs in fp32");
    }
  }
  StepRunner runner(graph, sites, policy, {.container = container});
  const auto read = [&](const std::string& file, const TensorType& type) {
    const bool is_int = type.element == ElementType::kInt;
    return read_raw(directory + "/" + file, type.shape, is_int ? Container::kI32 : container);
  };
  std::map<std::string, Tensor> parameters, buffers;
  for (const Parameter& p : graph.parameters) {
    runner.bind_parameter(p.name, parameters[p.name] = read("p_" + p.name, p.type));
  }
  for (const Buffer& b : graph.buffers) {
    runner.bind_buffer(b.name, buffers[b.name] = read("b_" + b.name, b.type));
  }
  Batch batch;
  for (const GraphInput& input : graph.inputs) {
    if (!is_seed(input.id)) batch[input.path] = read("in_" + input.path, input.type);
  }
  runner.begin({.key = {}, .loss_scales = {1}}, batch);
  for (int i = 0; i < runner.node_count(); ++i) {
    runner.run_node(i, nullptr, {});
    const Node& node = graph.nodes[static_cast<size_t>(i)];
    const int drawn = drawn_masks(node);
    if (drawn < 0) continue;
    const Tensor& masks = runner.values().of(output_id(node, static_cast<size_t>(drawn)));
    write_raw(directory + "/drawn_" + node.id, masks);
  }
  write_text_file_atomically(directory + "/loss.txt", fmt::format("{:.17g}\n", runner.loss()));
  for (const auto& [name, id] : graph.gradients) {
    write_raw(directory + "/g_" + name, runner.gradient(name));
  }
  runner.take_mutations(buffers);
  for (const Mutation& mutation : graph.mutations) {
    write_raw(directory + "/m_" + mutation.buffer, buffers.at(mutation.buffer));
  }
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  const std::vector<std::string> args(argv + 1, argv + argc);
  const std::span<const std::string> words(args);
  try {
    if (args.size() >= 2 && args[0] == "--describe") {
      lockstep::describe(lockstep::parse_request(args[1], words.subspan(2)));
    } else if (args.size() >= 3 && args[2].find('=') == std::string::npos) {
      lockstep::run(lockstep::parse_request(args[0], words.subspan(3)), args[1], args[2]);
    } else {
      std::cerr << "usage: lockstep_step_tool --describe MODEL [NAME=X ...]\n"
                   "       lockstep_step_tool MODEL DIR fp64|POLICY [NAME=X ...]\n";
      return 2;
    }
  } catch (const lockstep::InputError& error) {
    std::cerr << error.what() << '\n';
    return 2;
  }
  return 0;
}
