// gather: y[p] = x[p with its place along dim replaced by index[p]]. Operands x, index (integers of
// x's rank; no extent larger than x's except along dim).
// scatter_add: its counterpart, y[p with its place along dim replaced by index[p]] += src[p], from
// 0.

#include "src/graph/ops/movement.h"
#include "src/graph/ops/own_type.h"
#include "src/graph/ops/rows.h"

namespace lockstep {
namespace {

size_t checked_dim(const Node& node, const Shape& x, const Shape& index) {
  const auto dim = static_cast<size_t>(single_dim(node, x, 0));
  bool fits = index.size() == x.size();
  for (size_t d = 0; fits && d < x.size(); ++d) fits = d == dim || index[d] <= x[d];
  require(fits, node,
          "the index is " + to_string(index) + ", must have the dimensions of x " + to_string(x) +
              " and no larger extent except along dimension " + std::to_string(dim));
  return dim;
}

// The offsets in x (by strides) at which the items of `extents` begin, row-major.
std::vector<int64_t> places(std::span<const int64_t> extents, std::span<const int64_t> strides) {
  std::vector<int64_t> found = {0};
  for (size_t d = 0; d < extents.size(); ++d) {
    std::vector<int64_t> next;
    for (const int64_t place : found) {
      for (int64_t i = 0; i < extents[d]; ++i) next.push_back(place + i * strides[d]);
    }
    found = std::move(next);
  }
  return found;
}

ElementPick pick_of(const OpCall& call, const Shape& x, size_t index_operand) {
  const Shape& index = input_shape(call, index_operand);
  const size_t dim = checked_dim(call.node, x, index);
  const std::vector<int64_t> strides = dense_strides(x);
  const std::span<const int64_t> extents(index), steps(strides);
  return {.outer = places(extents.first(dim), steps.first(dim)),
          .inner = places(extents.subspan(dim + 1), steps.subspan(dim + 1)),
          .stride = strides[dim],
          .count = index[dim],
          .index = checked_indices(call, index_operand, x[dim])};
}

std::vector<TensorType> infer_gather(const Node& node, std::span<const TensorType> inputs) {
  require_int(node, inputs, 1);
  checked_dim(node, inputs[0].shape, inputs[1].shape);
  return {{inputs[1].shape, inputs[0].element}};
}

void gather_vjp(GradientBuilder& builder, const Node& node) {
  Attributes attributes = with_operand_shape(builder, node, "input_shape", 0);
  attributes["own_type"] = std::string("cuda");  // PyTorch calls scatter_add
  builder.add_node(node, "gather_backward", {node.inputs[1], builder.output_gradient(node)},
                   attributes, {0});
}

void run_gather(const OpCall& call) {
  const ElementPick pick = pick_of(call, input_shape(call, 0), 1);
  dispatch_any(call, [&]<typename T>(T*) {
    call.kernels.movement<T>().pick_elements(pick, input<T>(call, 0), output<T>(call, 0));
  });
}

std::vector<TensorType> infer_backward(const Node& node, std::span<const TensorType> inputs) {
  require_int(node, inputs, 0);
  require_float(node, inputs, 1);
  const Shape x = ints_attribute(node, "input_shape", {});
  checked_dim(node, x, inputs[0].shape);
  require_shape(node, inputs, 1, inputs[0].shape, "the shape of the index");
  return {{x}};
}

void run_backward(const OpCall& call) {
  const ElementPick pick = pick_of(call, output_shape(call, 0), 0);
  call.outputs[0]->fill_zero();
  dispatch(call, [&]<typename T>(T*) {
    call.kernels.of<T>().pick_elements_backward(pick, input<T>(call, 1), output<T>(call, 0),
                                                call.reduce_accumulator);
  });
}

std::vector<TensorType> infer_scatter_add(const Node& node, std::span<const TensorType> inputs) {
  check_own_type(node, "own_type");
  require_float(node, inputs, 0);
  require_int(node, inputs, 1);
  const Shape y = ints_attribute(node, "shape", {});
  checked_dim(node, y, inputs[1].shape);
  require_shape(node, inputs, 0, inputs[1].shape, "the shape of the index");
  return {{y}};
}

void run_scatter_add(const OpCall& call) {
  const ElementPick pick = pick_of(call, output_shape(call, 0), 1);
  call.outputs[0]->fill_zero();
  dispatch(call, [&]<typename T>(T*) {
    call.kernels.of<T>().pick_elements_backward(pick, input<T>(call, 0), output<T>(call, 0),
                                                call.reduce_accumulator);
  });
}

void scatter_add_vjp(GradientBuilder& builder, const Node& node) {
  Attributes attributes = node.attributes;
  attributes.erase("shape");
  attributes.erase("own_type");
  builder.add_node(node, "gather", {builder.output_gradient(node), node.inputs[1]}, attributes,
                   {0});
}

}  // namespace

std::vector<OpDef> gather_ops() {
  return {
      {.name = "gather",
       .help = "y[p] = x[p with index[p] along dim (default 0)]; operands x, index",
       .source = "torch.gather; CUDA autocast: not listed, runs in its input's type",
       .min_inputs = 2,
       .max_inputs = 2,
       .attributes = {"dim"},
       .infer = infer_gather,
       .vjp = gather_vjp,
       .run = run_gather,
       .elements = {.keeps_masks = true}},
      {.name = "scatter_add",
       .help = "y[p with index[p] along dim (default 0)] += src[p], ascending, from zeros of "
               "`shape`; operands src, index. own_type: as in index_add",
       .source = "torch.Tensor.scatter_add; CUDA autocast: promotes to the widest type",
       .cast_class = CastClass::kPromote,
       .min_inputs = 2,
       .max_inputs = 2,
       .attributes = {"dim", "shape", "own_type"},
       .infer = infer_scatter_add,
       .vjp = scatter_add_vjp,
       .run = run_scatter_add},
      {.name = "gather_backward",
       .help =
           "dx = sum of dy over the positions that read the element, ascending; operands index, "
           "dy",
       .source = "chain rule of gather",
       .min_inputs = 2,
       .max_inputs = 2,
       .attributes = {"dim", "input_shape", "own_type"},
       .infer = infer_backward,
       .run = run_backward},
  };
}

}  // namespace lockstep
