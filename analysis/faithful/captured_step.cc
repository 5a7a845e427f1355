// See captured_step.h.
#include "analysis/faithful/captured_step.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "src/core/bytes_text.h"
#include "src/core/error.h"
#include "src/core/free_memory.h"
#include "src/core/random.h"
#include "src/graph/autodiff.h"
#include "src/graph/watched.h"

namespace lockstep {
namespace {

// After the last pass: gradients, which are copied then, take their place. Stays: a weight that is
// itself a gradient or a buffer's new value.
void forget_weights(const Graph& graph, const StepRunner& runner, Tensors& held) {
  std::set<const void*> read;
  for (const auto& [name, id] : graph.gradients) read.insert(runner.gradient(name).raw());
  for (const Mutation& mutation : graph.mutations) {
    read.insert(runner.values().of(mutation.value).raw());
  }
  for (const Parameter& p : graph.parameters) {
    if (!read.contains(held.at(p.name).raw())) held.erase(p.name);
  }
}

// Copies the value if the node gives it.
void keep_if_done(const Node& node, const std::string& value, const std::string& name,
                  const ValueStore& values, Tensors& kept) {
  for (size_t i = 0; i < node.outputs.size(); ++i) {
    if (output_id(node, i) == value) kept.insert_or_assign(name, values.of(value));
  }
}

}  // namespace

CapturedStepRunner::CapturedStepRunner(const Capture& capture, const Policy& policy, bool is_fp64,
                                       const KernelSet& (*kernels)())
    : capture_(capture), policy_(policy), is_fp64_(is_fp64), kernels_(kernels) {}

CapturedStepRunner::GraphRunner& CapturedStepRunner::runner_of(int64_t graph) {
  GraphRunner& of_graph = runners_[graph];
  if (of_graph.runner != nullptr) return of_graph;
  of_graph.graph = differentiate(capture_.graphs.at(static_cast<size_t>(graph)));
  of_graph.sites = make_sites(of_graph.graph, 0);
  of_graph.runner =
      std::make_unique<StepRunner>(of_graph.graph, of_graph.sites, policy_,
                                   ExecutionRules{
                                       .container = is_fp64_ ? Container::kF64 : Container::kF32,
                                       .kernels = kernels_,
                                       .in_place = true,  // visits read and change values
                                   });
  of_graph.fp32_nodes.resize(of_graph.graph.nodes.size());
  const Program& program = of_graph.runner->executor().program();
  for (const Instruction& instruction : program.instructions) {
    if (instruction.kind != InstructionKind::kOp) continue;
    const Format* format = program.values[static_cast<size_t>(instruction.outputs.front())].format;
    of_graph.fp32_nodes[static_cast<size_t>(instruction.node)] =
        format != nullptr && format->is_fp32();
  }
  return of_graph;
}

void CapturedStepRunner::require_memory(const CapturedStep& step) {
  int64_t values = 0, weights = 0;
  for (const CapturedMicroBatch& micro : step.micro) {
    const GraphRunner& of_graph = runner_of(micro.graph);
    values = std::max(values, of_graph.runner->values().bytes());
    int64_t numbers = 0;
    for (const Parameter& p : of_graph.graph.parameters) numbers += element_count(p.type.shape);
    weights = std::max(
        weights,
        numbers * static_cast<int64_t>(bytes_of(is_fp64_ ? Container::kF64 : Container::kF32)));
  }
  const auto free = free_memory();
  if (!free || values + weights <= *free) return;
  throw InputError(
      fmt::format("memory: a step in {} needs at least {} ({} of weights, {} of gradients and "
                  "activations), {} is free",
                  is_fp64_ ? "FP64" : "FP32", bytes_text(values + weights), bytes_text(weights),
                  bytes_text(values), bytes_text(*free)),
      "free some, or capture smaller batches");
}

ComputedStep CapturedStepRunner::run(const CapturedStep& step, const Tensors& values,
                                     double loss_scale, const NodeVisit& visit, uint64_t seed) {
  return run_nodes(step, values, loss_scale, seed, visit, {});
}

ComputedStep CapturedStepRunner::run_moved(const CapturedStep& step, const Tensors& values,
                                           double loss_scale, Moves moves, const NodeVisit& visit) {
  uint32_t index = 0;
  const auto move = [&](size_t, int n, GraphRunner& of_graph) {
    const auto node = static_cast<size_t>(n);
    Tensor& y = of_graph.runner->values().mutable_of(of_graph.graph.nodes[node].id);
    const auto move_in = [&]<typename T>(const Kernels<T>& kernels) {
      const std::span<T> now = y.as<T>();
      std::vector<T> moved(now.begin(), now.end());
      const RandomStream signs(moves.signs, RandomPurpose::kTwin, index++);
      kernels.move_by_one_ulp(moved.data(), signs, 0, y.size());
      for (size_t i = 0; i < now.size(); ++i) {
        now[i] += static_cast<T>(moves.ulps) * (moved[i] - now[i]);
      }
    };
    if (y.container() == Container::kF64) {
      move_in(active_kernels().f64);
    } else if (of_graph.fp32_nodes[node]) {
      move_in(active_kernels().f32);
    }
  };
  return run_nodes(step, values, loss_scale, /*seed=*/0, visit, move);
}

// Values are read while they last: memory is used again. A gradient that is joined from several
// has the joined one's name.
void CapturedStepRunner::keep_watched(const GraphRunner& of_graph, const Node& node,
                                      ComputedStep& out) {
  const Graph& graph = of_graph.graph;
  const ValueStore& values = of_graph.runner->values();
  for (const auto& [name, value] : graph.outputs) {
    if (name.starts_with(kWatchPrefix)) {
      keep_if_done(node, value, name.substr(kWatchPrefix.size()), values, out.watched.back());
    }
  }
  for (const GraphInput& input : graph.inputs) {
    const auto gradient = graph.adjoints.find(input.id);
    if (!input.requires_grad || gradient == graph.adjoints.end()) continue;
    keep_if_done(node, gradient->second, input.path, values, out.input_gradients.back());
  }
}

ComputedStep CapturedStepRunner::run_nodes(const CapturedStep& step, const Tensors& values,
                                           double loss_scale, uint64_t seed, const NodeVisit& visit,
                                           const AfterNode& after) {
  const Container container = is_fp64_ ? Container::kF64 : Container::kF32;
  ComputedStep out;
  Tensors held;  // as bound
  for (const auto& [name, tensor] : values) {
    held[name] = tensor.container() == Container::kI32 ? tensor : tensor.to(container);
  }
  for (size_t m = 0; m < step.micro.size(); ++m) {
    const CapturedMicroBatch& micro = step.micro[m];
    GraphRunner& of_graph = runner_of(micro.graph);
    StepRunner& runner = *of_graph.runner;
    for (const Parameter& p : of_graph.graph.parameters)
      runner.bind_parameter(p.name, held.at(p.name));
    for (const Buffer& b : of_graph.graph.buffers) runner.bind_buffer(b.name, held.at(b.name));
    unpack_batch(micro, of_graph.batch);
    runner.begin(
        {.key = {.seed = seed}, .loss_scales = {loss_scale}, .loss_divisor = micro.loss_divisor()},
        of_graph.batch);
    if (capture_.part) {
      out.watched.emplace_back();
      out.input_gradients.emplace_back();
    }
    for (int n = 0; n < runner.node_count(); ++n) {
      const Node& node = of_graph.graph.nodes[static_cast<size_t>(n)];
      const bool shown = visit && !node.is_backward();
      if (shown) visit(m, node, runner.values(), /*done=*/false);
      runner.run_node(n, nullptr, {});
      if (shown) visit(m, node, runner.values(), /*done=*/true);
      if (capture_.part) keep_watched(of_graph, node, out);
      if (after) after(m, n, of_graph);
    }
    if (m + 1 == step.micro.size()) forget_weights(of_graph.graph, runner, held);
    out.loss += runner.loss() / static_cast<double>(step.micro.size());
    for (const auto& [name, id] : of_graph.graph.gradients) {
      const auto [entry, is_first] = out.gradients.try_emplace(name);
      if (is_first) entry->second = Tensor(runner.gradient(name).shape(), container);
      runner.add_gradient(name, /*pass=*/0, is_first, runner.parameter_format(name), entry->second);
    }
    runner.take_mutations(held);
  }
  for (const Graph& graph : capture_.graphs) {
    for (const Buffer& b : graph.buffers) out.buffers[b.name] = held.at(b.name);
  }
  return out;
}

}  // namespace lockstep
