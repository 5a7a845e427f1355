// Reads what PyTorch computed from known states, for the gates of `lockstep verify`.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "src/core/error.h"
#include "src/graph/op.h"
#include "src/record/capture/capture_contents.h"

namespace lockstep {
namespace {

using Nodes = std::map<std::string, const Node*>;  // of one graph, by id

void read_acts(const StoredFields& acts, const Nodes& nodes, CapturedInside& inside) {
  for (const std::string& id : acts.children()) {
    const StoredFields act = acts.child(id);
    const std::vector<double> numbers = act.numbers();
    std::array<double, 4> summary{};
    if (!nodes.contains(id)) {
      act.problem("names no node of its micro-batch's graph");
    } else if (numbers.size() != summary.size()) {
      act.problem(fmt::format("has {} numbers, {} required", numbers.size(), summary.size()));
    } else {
      std::ranges::copy(numbers, summary.begin());
      inside.acts[id] = summary;
    }
  }
}

// For a pool the choice is a place in its plane; for other ops it is a side of the kink.
void read_choice(const StoredFields& kink, const Node& node, CapturedInside& inside) {
  const Shape& wanted = node.outputs[0].shape;
  if (find_op(node.op).meaning.winner_output >= 0) {
    Tensor places = kink.take_tensor({wanted, ElementType::kInt}, Container::kI32);
    if (!places.empty()) inside.places.emplace(node.id, std::move(places));
    return;
  }
  const std::optional<Shape> extents = kink.shape("shape");
  if (!extents) return;
  if (*extents != wanted) {
    kink.problem(fmt::format("has shape {}, node {} gives {}", to_string(*extents), node.id,
                             to_string(wanted)));
    return;
  }
  std::optional<PackedBits> sides = kink.take_bits(*extents);
  if (sides) inside.sides.emplace(node.id, std::move(*sides));
}

bool has_kink(const Node& node) {
  const OpDef& op = find_op(node.op);
  return op.meaning.kink != nullptr || op.meaning.winner_output >= 0;
}

void read_kinks(const StoredFields& kinks, const Nodes& nodes, CapturedInside& inside) {
  for (const std::string& id : kinks.children()) {
    const StoredFields kink = kinks.child(id);
    const auto node = nodes.find(id);
    if (node == nodes.end() || !has_kink(*node->second)) {
      kink.problem("names no node with a kink in its micro-batch's graph");
      continue;
    }
    read_choice(kink, *node->second, inside);
  }
}

void read_inside(const StoredFields& at, const CapturedStep& step, const Capture& capture,
                 std::vector<CapturedInside>& all) {
  const size_t count = at.children().size();
  if (count == 0) return;
  if (count != step.micro.size()) {
    at.problem(fmt::format("has {} micro-batches, its step has {}", count, step.micro.size()));
    return;
  }
  for (size_t m = 0; m < count; ++m) {
    const StoredFields inside = at.child(fmt::format("{:03d}", m));
    const auto graph = static_cast<size_t>(step.micro[m].graph);
    if (graph >= capture.graphs.size()) continue;  // a problem of its step
    Nodes nodes;
    for (const Node& node : capture.graphs[graph].nodes) nodes[node.id] = &node;
    CapturedInside& into = all.emplace_back();
    read_kinks(inside.optional("kinks"), nodes, into);
    read_acts(inside.optional("acts"), nodes, into);
  }
}

// Gradients in FP64 that are stored as what those in FP32 lack, in FP32.
void add_rests(const StoredFields& rests, const Capture& capture, CapturedVerify& verify) {
  for (const Parameter& p : capture.graphs.front().parameters) {
    if (!rests.has(p.name)) continue;
    const StoredFields at = rests.child(p.name);
    const auto narrow = verify.grads32.find(p.name);
    if (narrow == verify.grads32.end() || verify.grads64.contains(p.name)) {
      at.problem("must belong to a gradient that is in ref32/grads and not in ref64/grads");
      continue;
    }
    const Tensor rest = at.take_tensor(p.type, Container::kF32);
    if (rest.empty() || narrow->second.empty()) continue;  // a problem already
    Tensor sum = narrow->second.to(Container::kF64);
    const auto numbers = sum.as<double>();
    for (size_t i = 0; i < numbers.size(); ++i) numbers[i] += rest.as<float>()[i];
    verify.grads64.emplace(p.name, std::move(sum));
  }
}

CapturedVerify read_one(const StoredFields& at, int64_t step, Capture& capture) {
  CapturedVerify verify;
  verify.step = step;
  const StoredFields before = at.child("pre");
  const bool has_optimizer = !capture.optimizer.empty() && !records_updates(capture);
  if (before.flag("is_start", false, /*required=*/false)) {
    if (std::ranges::any_of(capture.verify, &CapturedVerify::is_start)) {
      before.problem("is_start is 1 for two steps, must be for one");
    }
    verify.is_start = true;
    verify.before = std::move(capture.start);
  } else {
    read_values(before, capture, verify.before.values);
    if (has_optimizer && before.has("opt_state")) {
      read_states(before.child("opt_state"), capture, verify.before);
    }
  }
  const StoredFields ref32 = at.child("ref32"), ref64 = at.child("ref64");
  verify.loss32 = ref32.number("loss", kNotRecorded);
  verify.loss64 = ref64.number("loss", kNotRecorded);
  verify.grads32 = read_gradients(ref32.child("grads"), capture, Container::kF32);
  verify.grads64 = read_gradients(ref64.child("grads"), capture, Container::kF64);
  add_rests(ref64.optional("rests"), capture, verify);
  if (ref32.has("post")) {
    const StoredFields post = ref32.child("post");
    // Without a modelled optimizer no step was taken: the group has only running statistics.
    (has_optimizer ? read_values : read_buffers)(post, capture, verify.after.values);
    if (has_optimizer && post.has("opt_state")) {
      read_states(post.child("opt_state"), capture, verify.after);
    }
  }
  const StoredFields buffers64 = ref64.optional("post").optional("buffers");
  for (const Graph& graph : capture.graphs) {
    for (const Buffer& b : graph.buffers) {
      if (!buffers64.has(b.name) || verify.buffers64.contains(b.name)) continue;
      verify.buffers64.emplace(b.name,
                               buffers64.child(b.name).take_tensor(b.type, Container::kF64));
    }
  }
  const StoredFields noise = at.optional("noise");
  for (const Parameter& p : capture.graphs.front().parameters) {
    if (!noise.has(p.name)) continue;
    const StoredFields packed = noise.child(p.name);
    const std::optional<Shape> extents = packed.shape("shape");
    if (extents && *extents != p.type.shape) {
      packed.problem(fmt::format("has shape {}, the parameter {}", to_string(*extents),
                                 to_string(p.type.shape)));
    } else if (extents) {
      std::optional<PackedBits> bits = packed.take_bits(*extents);
      if (bits) verify.noise.emplace(p.name, std::move(*bits));
    }
  }
  read_inside(at.optional("micro"), capture.steps[static_cast<size_t>(step)], capture,
              verify.micro);
  return verify;
}

}  // namespace

Tensors read_gradients(const StoredFields& at, const Capture& capture, Container container) {
  Tensors gradients;
  for (const Parameter& p : capture.graphs.front().parameters) {
    if (at.has(p.name)) gradients.emplace(p.name, at.child(p.name).take_tensor(p.type, container));
  }
  return gradients;
}

void read_verify(const StoredFields& root, Capture& capture) {
  const StoredFields group = root.optional("verify");
  for (const std::string& name : group.children()) {
    const StoredFields at = group.child(name);
    const int64_t step = number_of(name);
    if (step < 0 || step >= static_cast<int64_t>(capture.steps.size())) {
      at.problem(fmt::format("is for step {}, the file has {}", name, capture.steps.size()));
      continue;
    }
    capture.verify.push_back(read_one(at, step, capture));
    CapturedStep& own = capture.steps[static_cast<size_t>(step)];
    const StoredFields fields = root.child("steps").child(name);
    own.grads_are_ref32 = fields.flag("grads_are_ref32", false, /*required=*/false);
  }
}

}  // namespace lockstep
