#include "analysis/faithful/captured_step.h"

#include <algorithm>

#include "src/graph/autodiff.h"
#include "src/train/lane.h"

namespace lockstep {
namespace {

double first_value(const Tensor& tensor) {
  return tensor.container() == Container::kF64 ? tensor.as<double>()[0] : tensor.as<float>()[0];
}

void add(const Tensor& from, Tensor& to) {
  const auto each = [&]<typename T>(T) {
    for (int64_t i = 0; i < to.size(); ++i) {
      to.as<T>()[static_cast<size_t>(i)] += from.as<T>()[static_cast<size_t>(i)];
    }
  };
  to.container() == Container::kF64 ? each(double()) : each(float());
}

}  // namespace

CapturedStepRunner::CapturedStepRunner(const Capture& capture, const Policy& policy, bool is_fp64)
    : capture_(capture), policy_(policy), is_fp64_(is_fp64) {}

CapturedStepRunner::Plan& CapturedStepRunner::plan_of(int64_t graph) {
  Plan& plan = plans_[graph];
  if (plan.executor != nullptr) return plan;
  plan.graph = differentiate(capture_.graphs.at(static_cast<size_t>(graph)));
  plan.sites = make_sites(plan.graph, 0);
  plan.executor = std::make_unique<Executor>(plan.graph, plan.sites,
                                             lower(plan.graph, plan.sites, policy_, is_fp64_),
                                             is_fp64_ ? Container::kF64 : Container::kF32);
  return plan;
}

ComputedStep CapturedStepRunner::run(const CapturedStep& step, const Tensors& values,
                                     double loss_scale, const NodeVisit& visit) {
  const Container container = is_fp64_ ? Container::kF64 : Container::kF32;
  ComputedStep out;
  Tensors held;  // as bound
  for (const auto& [name, tensor] : values) {
    held[name] = tensor.container() == Container::kI32 ? tensor : tensor.to(container);
  }
  for (size_t m = 0; m < step.micro.size(); ++m) {
    const CapturedMicroBatch& micro = step.micro[m];
    Plan& plan = plan_of(micro.graph);
    Executor& executor = *plan.executor;
    for (const Parameter& p : plan.graph.parameters) executor.bind("p:" + p.name, held.at(p.name));
    for (const Buffer& b : plan.graph.buffers) executor.bind("b:" + b.name, held.at(b.name));
    Tensor seed({}, container);
    const double factor = loss_scale * micro.loss_mult;
    if (is_fp64_) {
      seed.as<double>()[0] = factor;
    } else {
      seed.as<float>()[0] = static_cast<float>(factor);
    }
    executor.bind(kLossSeedId, seed);
    unpack_batch(micro, plan.batch);
    Tensors copies;
    bind_inputs(executor, plan.graph, plan.batch, {nullptr, Rounding::kNearestEven, {}}, copies);
    executor.begin_step({}, loss_scale);
    for (int n = 0; n < executor.node_count(); ++n) {
      const Node& node = plan.graph.nodes[static_cast<size_t>(n)];
      const bool shown = visit && !node.is_backward();
      if (shown) visit(m, node, executor, /*done=*/false);
      executor.run_node(n, nullptr, {});
      if (shown) visit(m, node, executor, /*done=*/true);
    }
    out.loss +=
        first_value(executor.value(plan.graph.loss)) / static_cast<double>(step.micro.size());
    for (const auto& [name, id] : plan.graph.gradients) {
      const Tensor& gradient = executor.value(id);
      const auto [entry, is_first] = out.gradients.emplace(name, gradient);
      if (!is_first) add(gradient, entry->second);
    }
    Tensors next;  // a mutation may read another buffer's old value
    for (const Mutation& mutation : plan.graph.mutations) {
      next[mutation.buffer] = executor.value(mutation.value);
    }
    for (auto& [name, tensor] : next) held.at(name) = std::move(tensor);
  }
  for (const Graph& graph : capture_.graphs) {
    for (const Buffer& b : graph.buffers) out.buffers[b.name] = held.at(b.name);
  }
  return out;
}

}  // namespace lockstep
