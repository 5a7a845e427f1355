// slice: every `step`-th element of one dimension from `start` up to but not including `end`.
// Negative places count from the end, and places beyond an end mean that end, as in Python.
#include <algorithm>
#include <limits>

#include "src/graph/ops/movement.h"
#include "src/graph/ops/rows.h"

namespace lockstep {
namespace {

struct Slice {
  size_t dim;
  int64_t start, step;
  Shape shape;  // of the slice
};

Slice slice_of(const Node& node, const Shape& x) {
  Slice slice{};
  slice.dim = static_cast<size_t>(single_dim(node, x, 0));
  const int64_t extent = x[slice.dim];
  const auto place = [&](std::string_view name, int64_t fallback) {
    const int64_t given = int_attribute(node, name, fallback);
    return std::clamp<int64_t>(given < 0 ? given + extent : given, 0, extent);
  };
  slice.start = place("start", 0);
  const int64_t end = place("end", std::numeric_limits<int64_t>::max());
  slice.step = int_attribute(node, "step", 1);
  require(slice.step >= 1, node,
          "attribute 'step' is " + std::to_string(slice.step) + ", must be at least 1");
  require(slice.start < end, node,
          "elements " + std::to_string(slice.start) + " up to " + std::to_string(end) +
              " of dimension " + std::to_string(slice.dim) + " of " + to_string(x) +
              " are none, must be at least one");
  slice.shape = x;
  slice.shape[slice.dim] = (end - slice.start + slice.step - 1) / slice.step;
  return slice;
}

std::vector<TensorType> infer_slice(const Node& node, std::span<const TensorType> inputs) {
  return {{slice_of(node, inputs[0].shape).shape, inputs[0].element}};
}

void slice_vjp(GradientBuilder& builder, const Node& node) {
  builder.add_node(node, "slice_backward", {builder.output_gradient(node)},
                   with_operand_shape(builder, node, "input_shape", 0), {0});
}

// Strides of x along the slice's dimensions.
std::vector<int64_t> slice_strides(const Slice& slice, const Shape& x) {
  std::vector<int64_t> strides = dense_strides(x);
  strides[slice.dim] *= slice.step;
  return strides;
}

void run_slice(const OpCall& call) {
  const Shape& x = input_shape(call, 0);
  const Slice slice = slice_of(call.node, x);
  const int64_t offset = slice.start * dense_strides(x)[slice.dim];
  dispatch_any(call, [&]<typename T>(T*) {
    copy_strided(call, input<T>(call, 0) + offset, slice_strides(slice, x));
  });
}

std::vector<TensorType> infer_backward(const Node& node, std::span<const TensorType> inputs) {
  require_floats(node, inputs);
  const Shape x = ints_attribute(node, "input_shape", {});
  require_shape(node, inputs, 0, slice_of(node, x).shape, "the shape of the slice");
  return {{x}};
}

void run_backward(const OpCall& call) {
  const Shape& x = output_shape(call, 0);
  const Slice slice = slice_of(call.node, x);
  const int64_t offset = slice.start * dense_strides(x)[slice.dim];
  call.outputs[0]->fill_zero();
  dispatch(call, [&]<typename T>(T*) {
    call.kernels.movement<T>().strided_copy(
        strided_dims(slice.shape, dense_strides(slice.shape), slice_strides(slice, x)),
        input<T>(call, 0), output<T>(call, 0) + offset);
  });
}

}  // namespace

std::vector<OpDef> slice_ops() {
  return {
      {.name = "slice",
       .help = "elements start, start + step, ... below end, along dim (default 0); negative "
               "places count from the end",
       .source = "torch.Tensor.__getitem__, aten::slice; CUDA autocast: not listed",
       .attributes = {"dim", "start", "end", "step"},
       .infer = infer_slice,
       .vjp = slice_vjp,
       .run = run_slice,
       .elements = {.keeps_masks = true, .is_view = true, .may_vanish = true}},
      {.name = "slice_backward",
       .help = "dx = dy in the slice, 0 elsewhere",
       .source = "chain rule of slice",
       .attributes = {"dim", "start", "end", "step", "input_shape"},
       .infer = infer_backward,
       .run = run_backward,
       .elements = {.may_vanish = true}},
  };
}

}  // namespace lockstep
