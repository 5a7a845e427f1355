// What PyTorch itself computed from known states, for the gates of `lockstep verify`.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "src/core/error.h"
#include "src/record/capture_parts.h"

namespace lockstep {
namespace {

const Node* find_node(const Graph& graph, const std::string& id) {
  const auto found = std::ranges::find(graph.nodes, id, &Node::id);
  return found == graph.nodes.end() ? nullptr : &*found;
}

void read_acts(const CaptureFields& acts, const Graph& graph, CapturedInside& inside) {
  for (const std::string& id : acts.children()) {
    const CaptureFields act = acts.child(id);
    const std::vector<double> numbers = act.numbers();
    std::array<double, 4> summary{};
    if (find_node(graph, id) == nullptr) {
      act.problem("is of no node of the graph");
    } else if (numbers.size() != summary.size()) {
      act.problem(fmt::format("has {} numbers, {} required", numbers.size(), summary.size()));
    } else {
      std::ranges::copy(numbers, summary.begin());
      inside.acts[id] = summary;
    }
  }
}

void read_kinks(const CaptureFields& kinks, const Graph& graph, CapturedInside& inside) {
  for (const std::string& id : kinks.children()) {
    const CaptureFields kink = kinks.child(id);
    const Node* node = find_node(graph, id);
    if (node == nullptr) {
      kink.problem("is of no node of the graph");
      continue;
    }
    Tensor choice = node->op == "max_pool2d"
                        ? kink.tensor_of_any_shape(ElementType::kInt, Container::kI32)
                        : kink.packed_bits();
    if (choice.empty()) continue;
    if (choice.shape() != node->outputs[0].shape) {
      kink.problem(fmt::format("has shape {}, node {} gives {}", to_string(choice.shape()), id,
                               to_string(node->outputs[0].shape)));
      continue;
    }
    inside.kinks.emplace(id, std::move(choice));
  }
}

CapturedVerify read_one(const CaptureFields& at, int64_t step, const Capture& capture) {
  CapturedVerify verify;
  verify.step = step;
  const CaptureFields before = at.child("pre");
  read_values(before, capture, verify.before.values);
  const bool has_optimizer = !capture.optimizer.empty();
  if (has_optimizer && before.has("opt_state")) {
    read_states(before.child("opt_state"), capture, verify.before);
  }
  const CaptureFields ref32 = at.child("ref32"), ref64 = at.child("ref64");
  verify.loss32 = ref32.number("loss", kNotRecorded);
  verify.loss64 = ref64.number("loss", kNotRecorded);
  for (const auto& [ref, loss] : {std::pair{&ref32, verify.loss32}, {&ref64, verify.loss64}}) {
    if (ref->has_attribute("loss") && !std::isfinite(loss)) {
      ref->problem(fmt::format("loss is {}, must be finite", loss),
                   "nothing can be compared with it");
    }
  }
  verify.grads32 = read_gradients(ref32.child("grads"), capture, Container::kF32);
  verify.grads64 = read_gradients(ref64.child("grads"), capture, Container::kF64);
  if (ref32.has("post")) {
    const CaptureFields post = ref32.child("post");
    read_values(post, capture, verify.after.values);
    if (has_optimizer && post.has("opt_state")) {
      read_states(post.child("opt_state"), capture, verify.after);
    }
  }
  const CaptureFields noise = at.optional("noise");
  for (const Parameter& p : capture.graphs.front().parameters) {
    if (!noise.has(p.name)) continue;
    Tensor bits = noise.child(p.name).packed_bits();
    if (bits.empty()) continue;
    if (bits.shape() != p.type.shape) {
      noise.child(p.name).problem(fmt::format("has shape {}, the parameter {}",
                                              to_string(bits.shape()), to_string(p.type.shape)));
      continue;
    }
    verify.noise.emplace(p.name, std::move(bits));
  }
  const CaptureFields micro = at.optional("micro");
  for (const std::string& name : micro.children()) {
    const CaptureFields inside = micro.child(name);
    const auto& of_step = capture.steps[static_cast<size_t>(step)].micro;
    const size_t number = verify.micro.size();
    CapturedInside& into = verify.micro.emplace_back();
    if (number >= of_step.size()) continue;  // read_verify says so
    const Graph& graph = capture.graphs.at(static_cast<size_t>(of_step[number].graph));
    read_kinks(inside.optional("kinks"), graph, into);
    read_acts(inside.optional("acts"), graph, into);
  }
  return verify;
}

}  // namespace

Tensors read_gradients(const CaptureFields& at, const Capture& capture, Container container) {
  Tensors gradients;
  for (const Parameter& p : capture.graphs.front().parameters) {
    if (at.has(p.name)) gradients.emplace(p.name, at.child(p.name).tensor(p.type, container));
  }
  return gradients;
}

void read_verify(const CaptureFields& root, Capture& capture) {
  const CaptureFields group = root.optional("verify");
  for (const std::string& name : group.children()) {
    const CaptureFields at = group.child(name);
    const int64_t step = number_of(name);
    if (step < 0 || step >= static_cast<int64_t>(capture.steps.size())) {
      at.problem(fmt::format("is of step {}, the file has {}", name, capture.steps.size()));
      continue;
    }
    capture.verify.push_back(read_one(at, step, capture));
    const size_t micros = capture.verify.back().micro.size();
    const size_t wanted = capture.steps[static_cast<size_t>(step)].micro.size();
    if (micros != 0 && micros != wanted) {
      at.problem(fmt::format("has {} micro-batches, its step has {}", micros, wanted));
    }
  }
}

}  // namespace lockstep
