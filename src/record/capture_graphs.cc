// The graphs of a capture and the values that belong to them.
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <set>

#include "src/core/error.h"
#include "src/graph/json.h"
#include "src/graph/op.h"
#include "src/record/capture_parts.h"

namespace lockstep {
namespace {

// So large that no machine holds it; and products of extents stay far from overflow.
constexpr double kMostElements = 1e11;

void check_sizes(const Graph& graph, const CaptureFields& at) {
  const auto check = [&](const std::string& what, const TensorType& type) {
    double count = 1;
    for (const int64_t extent : type.shape) count *= static_cast<double>(extent);
    if (count > kMostElements) {
      at.problem(fmt::format("{} has shape {}, at most {} elements allowed", what,
                             to_string(type.shape), kMostElements));
    }
  };
  for (const Parameter& p : graph.parameters) check("parameter " + p.name, p.type);
  for (const Buffer& b : graph.buffers) check("buffer " + b.name, b.type);
  for (const Constant& c : graph.constants) check("constant " + c.name, c.type);
  for (const GraphInput& input : graph.inputs) check("input " + input.id, input.type);
  for (const Node& node : graph.nodes) {
    for (const TensorType& type : node.outputs) check("node " + node.id, type);
  }
}

// A node outside every region is outside autocast where the model opens regions itself and the loop
// around it did not.
void resolve_regions(Graph& graph, const CapturedAmp& amp) {
  const bool inside_model = std::ranges::any_of(
      graph.nodes, [](const Node& node) { return node.autocast == AutocastRegion::kOn; });
  if (amp.autocast || !inside_model) return;
  for (Node& node : graph.nodes) {
    if (node.autocast == AutocastRegion::kUnsaid) node.autocast = AutocastRegion::kOff;
  }
}

void read_constants(const CaptureFields& root, Graph& graph) {
  const CaptureFields group =
      graph.constants.empty() ? root.optional("constants") : root.child("constants");
  for (Constant& constant : graph.constants) {
    const CaptureFields data = group.child(constant.name);
    constant.data = std::make_shared<const Tensor>(data.tensor(constant.type, Container::kF32));
    constant.stat_exempt |= data.flag("stat_exempt", false, /*required=*/false);
  }
}

void check_paths(const Graph& graph, const CaptureFields& at) {
  std::set<std::string> paths;
  for (const GraphInput& input : graph.inputs) {
    if (input.id == kLossSeedId) at.problem("input 'seed' is Lockstep's own");
    if (input.path.empty() || !paths.insert(input.path).second) {
      at.problem(
          fmt::format("input {} has path '{}': a path of its own required", input.id, input.path));
    }
  }
}

}  // namespace

void read_graphs(const CaptureFields& root, Capture& capture) {
  const CaptureFields graphs = root.child("graphs");
  const auto count = static_cast<int64_t>(graphs.children().size());
  if (graphs.there() && count == 0) graphs.problem("has no graph");
  for (int64_t k = 0; k < count; ++k) {
    const CaptureFields json = graphs.child(std::to_string(k)).child("json");
    if (!json.there()) continue;
    try {
      Graph graph = graph_from_json(json.bytes_text());
      if (graph.name.empty()) graph.name = capture.model_class;
      if (graph.loss.empty()) json.problem("names no loss");
      if (!graph.gradients.empty() ||
          std::ranges::any_of(graph.nodes, [](const Node& n) { return n.is_backward(); })) {
        json.problem("has backward nodes, a capture's graph is the forward pass alone");
      }
      check_sizes(graph, json);
      check_paths(graph, json);
      resolve_regions(graph, capture.amp);
      read_constants(root, graph);
      capture.graphs.push_back(std::move(graph));
    } catch (const InputError& error) {
      for (const std::string& problem : error.problems()) json.problem(problem);
    }
  }
}

void read_values(const CaptureFields& at, const Capture& capture, Tensors& values) {
  const CaptureFields params = at.child("params"), buffers = at.optional("buffers");
  for (const Graph& graph : capture.graphs) {
    for (const Parameter& p : graph.parameters) {
      if (values.contains(p.name)) continue;
      values.emplace(p.name, params.child(p.name).tensor(p.type, Container::kF32));
    }
    if (!graph.buffers.empty() && !buffers.there()) {
      buffers.problem("is missing");
      continue;
    }
    for (const Buffer& b : graph.buffers) {
      if (values.contains(b.name)) continue;
      values.emplace(b.name, buffers.child(b.name).tensor(b.type, Container::kF32));
    }
  }
}

}  // namespace lockstep
