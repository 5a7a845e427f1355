// index_select: the slices of x along dim that an index (J) names, in its order; may repeat.
// index_add: its counterpart, the slices of src (J along dim) added up where the index puts them,
// from 0.
#include "src/graph/ops/movement.h"
#include "src/graph/ops/own_type.h"
#include "src/graph/ops/rows.h"

namespace lockstep {
namespace {

// x seen as (outer, dim, inner).
RowPick pick_of(const OpCall& call, const Shape& x, size_t index_operand) {
  const auto dim = static_cast<size_t>(single_dim(call.node, x, 0));
  RowPick pick{};
  pick.outer = pick.inner = 1;
  for (size_t d = 0; d < x.size(); ++d) (d < dim ? pick.outer : pick.inner) *= d == dim ? 1 : x[d];
  pick.rows = x[dim];
  pick.index = checked_indices(call, index_operand, x[dim]);
  pick.count = call.inputs[index_operand]->size();
  return pick;
}

Shape selected_shape(const Node& node, Shape x, std::span<const TensorType> inputs,
                     size_t index_operand) {
  require_int(node, inputs, index_operand);
  require_rank(node, inputs, index_operand, 1, "(J)");
  x[static_cast<size_t>(single_dim(node, x, 0))] = inputs[index_operand].shape[0];
  return x;
}

std::vector<TensorType> infer_index_select(const Node& node, std::span<const TensorType> inputs) {
  check_own_type(node, "gradient_own_type");
  return {{selected_shape(node, inputs[0].shape, inputs, 1), inputs[0].element}};
}

void index_select_vjp(GradientBuilder& builder, const Node& node) {
  Attributes attributes = with_operand_shape(builder, node, "input_shape", 0);
  if (auto own_type = attributes.extract("gradient_own_type")) {
    attributes["own_type"] = own_type.mapped();
  }
  builder.add_node(node, "index_select_backward", {node.inputs[1], builder.output_gradient(node)},
                   attributes, {0});
}

void run_index_select(const OpCall& call) {
  const RowPick pick = pick_of(call, input_shape(call, 0), 1);
  dispatch_any(call, [&]<typename T>(T*) {
    call.kernels.movement<T>().pick_rows(pick, input<T>(call, 0), output<T>(call, 0));
  });
}

std::vector<TensorType> infer_backward(const Node& node, std::span<const TensorType> inputs) {
  require_float(node, inputs, 1);
  const Shape x = ints_attribute(node, "input_shape", {});
  require_shape(node, inputs, 1, selected_shape(node, x, inputs, 0), "the shape of the selection");
  return {{x}};
}

void run_backward(const OpCall& call) {
  const RowPick pick = pick_of(call, output_shape(call, 0), 0);
  dispatch(call, [&]<typename T>(T*) {
    call.kernels.of<T>().pick_rows_backward(pick, input<T>(call, 1), output<T>(call, 0),
                                            call.reduce_accumulator);
  });
}

std::vector<TensorType> infer_index_add(const Node& node, std::span<const TensorType> inputs) {
  check_own_type(node, "own_type");
  require_float(node, inputs, 0);
  const Shape y = ints_attribute(node, "shape", {});
  require_shape(node, inputs, 0, selected_shape(node, y, inputs, 1), "one slice for each place");
  return {{y}};
}

void run_index_add(const OpCall& call) {
  const RowPick pick = pick_of(call, output_shape(call, 0), 1);
  dispatch(call, [&]<typename T>(T*) {
    call.kernels.of<T>().pick_rows_backward(pick, input<T>(call, 0), output<T>(call, 0),
                                            call.reduce_accumulator);
  });
}

void index_add_vjp(GradientBuilder& builder, const Node& node) {
  Attributes attributes = node.attributes;
  attributes.erase("shape");
  attributes.erase("own_type");
  builder.add_node(node, "index_select", {builder.output_gradient(node), node.inputs[1]},
                   attributes, {0});
}

}  // namespace

std::vector<OpDef> index_select_ops() {
  return {
      {.name = "index_select",
       .help = "the slices of x along dim (default 0) that index (J) names; operands x, index. "
               "gradient_own_type: own_type of the gradient's sum, as in index_add",
       .source = "torch.index_select; CUDA autocast: not listed, runs in its input's type",
       .min_inputs = 2,
       .max_inputs = 2,
       .attributes = {"dim", "gradient_own_type"},
       .infer = infer_index_select,
       .vjp = index_select_vjp,
       .run = run_index_select,
       .foreign_names = {.mxnet = "take"},
       .elements = {.keeps_masks = true}},
      {.name = "index_add",
       .help =
           "y[index[j]] += src[j] along dim (default 0), ascending, from zeros of `shape`; "
           "operands src, index (J). own_type: where PyTorch adds 16-bit numbers in 16 bits (cuda, "
           "cpu, both, none)",
       .source = "torch.Tensor.index_add; CUDA autocast: not listed, runs in its input's type",
       .min_inputs = 2,
       .max_inputs = 2,
       .attributes = {"dim", "shape", "own_type"},
       .infer = infer_index_add,
       .vjp = index_add_vjp,
       .run = run_index_add},
      {.name = "index_select_backward",
       .help =
           "dx = sum of dy over the positions that read the slice, ascending; operands index, dy",
       .source = "chain rule of index_select",
       .min_inputs = 2,
       .max_inputs = 2,
       .attributes = {"dim", "input_shape", "own_type"},
       .infer = infer_backward,
       .run = run_backward},
  };
}

}  // namespace lockstep
