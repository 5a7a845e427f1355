// Reads the graphs of a capture and their values.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <set>

#include "src/core/error.h"
#include "src/graph/infer.h"
#include "src/graph/json.h"
#include "src/graph/json_text.h"
#include "src/graph/op.h"
#include "src/record/capture/capture_contents.h"

namespace lockstep {
namespace {

// Every value of a forward pass in FP32 at once. A larger graph would otherwise stop in the middle
// of the first step, when memory runs out.
void check_memory(const Graph& graph, const StoredFields& at) {
  double elements = 0;
  for (const Node& node : graph.nodes) {
    for (const TensorType& type : node.outputs) {
      elements += static_cast<double>(element_count(type.shape));
    }
  }
  constexpr double kGiB = 1 << 30;
  const double wanted = elements * sizeof(float) / kGiB;
  const double there = static_cast<double>(sysconf(_SC_PHYS_PAGES)) *
                       static_cast<double>(sysconf(_SC_PAGESIZE)) / kGiB;
  if (wanted <= there) return;
  at.problem(fmt::format("the values of its nodes take {:.1f} GiB, this machine has {:.1f}", wanted,
                         there),
             "capture a smaller batch");
}

// One name is one tensor, in all graphs.
void check_names(const Capture& capture, const StoredFields& at) {
  std::map<std::string, std::pair<TensorType, bool>> known;  // bool: a parameter
  const auto check = [&](const std::string& name, const TensorType& type, bool is_parameter) {
    const auto [first, is_new] = known.emplace(name, std::pair{type, is_parameter});
    if (is_new || first->second == std::pair{type, is_parameter}) return;
    const auto describe = [](const std::pair<TensorType, bool>& thing) {
      return (thing.second ? "parameter " : "buffer ") + to_string(thing.first);
    };
    at.problem(fmt::format("'{}' is a {} and a {}, must be one thing in all graphs", name,
                           describe(first->second), describe({type, is_parameter})));
  };
  for (const Graph& graph : capture.graphs) {
    for (const Parameter& p : graph.parameters) check(p.name, p.type, true);
    for (const Buffer& b : graph.buffers) check(b.name, b.type, false);
  }
}

// Appends to every graph the parameters or buffers that only other graphs have.
template <typename Items>
void share(std::vector<Graph>& graphs, Items Graph::*items) {
  Items all;
  const auto add_missing = [](Items& to, const Items& from) {
    for (const auto& item : from) {
      const bool known =
          std::ranges::any_of(to, [&](const auto& x) { return x.name == item.name; });
      if (!known) to.push_back(item);
    }
  };
  for (const Graph& graph : graphs) add_missing(all, graph.*items);
  for (Graph& graph : graphs) add_missing(graph.*items, all);
}

// A node outside every region is outside autocast if the model opens regions itself and the loop
// around it did not.
void resolve_regions(Graph& graph, const CapturedAmp& amp) {
  const bool inside_model = std::ranges::any_of(
      graph.nodes, [](const Node& node) { return node.autocast == AutocastRegion::kOn; });
  if (amp.autocast || !inside_model) return;
  for (Node& node : graph.nodes) {
    if (node.autocast == AutocastRegion::kUnsaid) node.autocast = AutocastRegion::kOff;
  }
}

// Backward ops do not check their operands (the places of a max_pool2d), which autodiff makes.
void check_ops(const Graph& graph, const StoredFields& at) {
  for (const Node& node : graph.nodes) {
    if (node.is_backward() || node.op.find("_backward") != std::string::npos) {
      at.problem(
          fmt::format("node {} ({}) is part of a backward pass, a capture's graph must be the "
                      "forward pass alone",
                      node.id, node.op));
    }
  }
  if (!graph.gradients.empty() || !graph.passes.empty()) {
    at.problem("names gradients, a capture's graph must be only the forward pass");
  }
}

// `known`: the constants of earlier graphs, by name.
using Constants = std::map<std::string, std::shared_ptr<const Tensor>>;
void read_constants(const StoredFields& root, Graph& graph, Constants& known) {
  const StoredFields group =
      graph.constants.empty() ? root.optional("constants") : root.child("constants");
  for (Constant& constant : graph.constants) {
    const StoredFields data = group.child(constant.name);
    constant.stat_exempt |= data.flag("stat_exempt", false, /*required=*/false);
    const bool is_int = constant.type.element == ElementType::kInt;
    std::shared_ptr<const Tensor>& tensor = known[constant.name];
    if (tensor == nullptr) {
      tensor = std::make_shared<const Tensor>(data.take_tensor(constant.type, Container::kF32));
    } else if (!tensor->empty() && (tensor->shape() != constant.type.shape ||
                                    (tensor->container() == Container::kI32) != is_int)) {
      data.problem("two graphs give it different types or shapes, must be one thing in all graphs");
    }
    constant.data = tensor;
  }
}

void check_paths(const Graph& graph, const StoredFields& at) {
  std::set<std::string> paths;
  for (const GraphInput& input : graph.inputs) {
    if (input.id == kLossSeedId) at.problem("input 'seed' is Lockstep's own");
    if (input.path.empty() || !paths.insert(input.path).second) {
      at.problem(fmt::format("input {} has path '{}', must be unique", input.id, input.path));
    }
    if (input.path.starts_with(kMaskPrefix)) {
      at.problem(fmt::format("input {} has path '{}': {}... is reserved for masks", input.id,
                             input.path, kMaskPrefix));
    }
  }
}

}  // namespace

void read_graphs(const StoredFields& root, Capture& capture) {
  const StoredFields graphs = root.child("graphs");
  const auto count = static_cast<int64_t>(graphs.children().size());
  if (graphs.there() && count == 0) graphs.problem("has no graph");
  size_t bytes = 0;
  Constants constants;
  for (int64_t k = 0; k < count; ++k) {
    const StoredFields json = graphs.child(std::to_string(k)).child("json");
    if (!json.there()) continue;
    try {
      const std::string text = json.take_text();
      bytes += text.size();
      if (bytes > kMostJsonBytes) {
        json.problem(
            fmt::format("the graphs together have more than {} bytes of JSON", kMostJsonBytes));
        return;
      }
      Graph graph = graph_from_json(text);
      if (graph.name.empty()) graph.name = capture.model_class;
      if (graph.loss.empty()) json.problem("names no loss");
      check_ops(graph, json);
      check_memory(graph, json);
      check_paths(graph, json);
      resolve_regions(graph, capture.amp);
      read_constants(root, graph, constants);
      capture.graphs.push_back(std::move(graph));
    } catch (const InputError& error) {
      for (const std::string& problem : error.problems()) json.problem(problem);
    }
  }
  check_names(capture, graphs);
  // A weight that a step's path does not reach is unchanged in it, but every step has it.
  share(capture.graphs, &Graph::parameters);
  share(capture.graphs, &Graph::buffers);
}

void read_values(const StoredFields& at, const Capture& capture, Tensors& values) {
  const StoredFields params = at.child("params");
  for (const Graph& graph : capture.graphs) {
    for (const Parameter& p : graph.parameters) {
      if (values.contains(p.name)) continue;
      values.emplace(p.name, params.child(p.name).take_tensor(p.type, Container::kF32));
    }
  }
  read_buffers(at, capture, values);
}

void read_buffers(const StoredFields& at, const Capture& capture, Tensors& values) {
  const StoredFields buffers = at.optional("buffers");
  for (const Graph& graph : capture.graphs) {
    if (!graph.buffers.empty() && !buffers.there()) {
      buffers.problem("is missing");
      continue;
    }
    for (const Buffer& b : graph.buffers) {
      if (values.contains(b.name)) continue;
      values.emplace(b.name, buffers.child(b.name).take_tensor(b.type, Container::kF32));
    }
  }
}

}  // namespace lockstep
