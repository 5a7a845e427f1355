// Reads what a part's capture says of the run that it was taken from.
#include <fmt/format.h>

#include "src/record/capture/capture_contents.h"

namespace lockstep {
namespace {

// Of any shape.
Tensors read_leaves(const StoredFields& at) {
  Tensors found;
  for (const std::string& name : at.children()) {
    const StoredFields leaf = at.child(name);
    const StoredValue* value = leaf.value();
    if (value == nullptr) continue;
    const TensorType type{value->shape, ElementType::kFloat};
    found.emplace(name, leaf.take_tensor(type, Container::kF32));
  }
  return found;
}

// Whether a block of this shape lies in `whole`.
bool lies_in(const Shape& block, const Shape& offset, const Shape& whole) {
  if (block.size() != whole.size() || offset.size() != whole.size()) return false;
  for (size_t d = 0; d < whole.size(); ++d) {
    if (offset[d] < 0 || block[d] > whole[d] || offset[d] > whole[d] - block[d]) return false;
  }
  return true;
}

void read_run_gradients(const StoredFields& at, const Capture& capture, CapturedPart& part) {
  for (const Parameter& p : capture.graphs.front().parameters) {
    if (!at.has(p.name)) continue;
    const StoredFields stored = at.child(p.name);
    const StoredValue* value = stored.value();
    if (value == nullptr) continue;
    CapturedRunGradient gradient;
    Shape wanted = p.type.shape;
    if (stored.has_attribute("offset")) {
      const std::optional<Shape> offset = stored.shape("offset");
      if (!offset) continue;
      if (!lies_in(value->shape, *offset, wanted)) {
        stored.problem(fmt::format("has a block {} at {}, the weight is {}",
                                   to_string(value->shape), to_string(*offset), to_string(wanted)));
        continue;
      }
      gradient.offset = *offset;
      wanted = value->shape;
    }
    gradient.values = stored.take_tensor({wanted, ElementType::kFloat}, Container::kF32);
    part.run_gradients.emplace(p.name, std::move(gradient));
  }
}

void read_calls(const StoredFields& at, const Capture& capture, CapturedPart& part) {
  const size_t count = at.children().size();
  const size_t wanted = capture.steps.empty() ? 0 : capture.steps.front().micro.size();
  if (count != wanted) {
    at.problem(fmt::format("has {} calls, the step has {} micro-batches", count, wanted));
    return;
  }
  for (size_t m = 0; m < count; ++m) {
    const StoredFields call = at.child(fmt::format("{:03d}", m));
    part.calls.push_back({.outputs = read_leaves(call.optional("outputs")),
                          .input_gradients = read_leaves(call.optional("input_gradients"))});
  }
}

}  // namespace

void read_part(const StoredFields& root, bool contents, Capture& capture) {
  const StoredFields at = root.optional("part");
  if (!at.there()) return;
  CapturedPart part;
  part.module = at.plain_text("module");
  part.module_class = at.plain_text("class");
  part.step = at.integer("step", 0);
  part.rank = at.integer("rank", 0);
  part.world_size = at.integer("world_size", 1);
  part.loss_scale = at.number("loss_scale", 1);
  part.own_columns = at.plain_text("own_columns", /*required=*/false);
  part.output = at.plain_text("output");
  part.input_gradient = at.plain_text("input_gradient");
  part.gradient = at.plain_text("gradient");
  part.output_off = at.number("output_off", kNotRecorded);
  part.kept_rows = at.integer("kept_rows", 0, /*required=*/false);
  part.kept_tokens = at.integer("kept_tokens", 0, /*required=*/false);
  part.rows = at.integer("rows", 0, /*required=*/false);
  part.tokens = at.integer("tokens", 0, /*required=*/false);
  if (part.rank < 0 || part.world_size < 1 || part.rank >= part.world_size) {
    at.problem(fmt::format("rank is {} of {}", part.rank, part.world_size));
  }
  if (!(part.loss_scale > 0)) at.problem(fmt::format("loss_scale is {}", part.loss_scale));
  if (capture.steps.size() > 1) {
    at.problem(fmt::format("has {} steps, a part has one", capture.steps.size()));
  }
  if (contents) {
    part.gradients = read_gradients(at.child("gradients"), capture, Container::kF32);
    read_run_gradients(at.optional("run_gradients"), capture, part);
    const StoredFields placements = at.optional("placements");
    for (const std::string& name : placements.children()) {
      part.placements[name] = placements.child(name).plain_text("of");
    }
    read_calls(at.child("calls"), capture, part);
  }
  capture.part = std::move(part);
}

}  // namespace lockstep
