// where and masked_fill: elements chosen by an integer mask; nonzero means true.
#include "src/graph/ops/broadcast.h"
#include "src/graph/ops/op_helpers.h"

namespace lockstep {
namespace {

std::vector<TensorType> infer_where(const Node& node, std::span<const TensorType> inputs) {
  require_int(node, inputs, 0);
  require_float(node, inputs, 1);
  require_float(node, inputs, 2);
  const Shape values = broadcast_shape(node, inputs[1].shape, inputs[2].shape);
  return {{broadcast_shape(node, inputs[0].shape, values)}};
}

// Has output 0 written by choose(mask, begin, count) on pieces of it, each with the part of the
// mask at operand `index` that belongs to it; see fill_output().
template <typename Choose>
void with_mask(const OpCall& call, size_t index, Choose choose) {
  if (is_read_again(input_shape(call, index), output_shape(call, 0))) {
    const int32_t* mask = input<int32_t>(call, index);
    const int64_t size = call.inputs[index]->size();
    fill_output(call, [=](int64_t begin, int64_t end) {
      for_repetitions(size, begin, end, [&](int64_t at, int64_t within, int64_t count) {
        choose(mask + within, at, count);
      });
    });
  } else {
    fill_output(call,
                [choose, mask = whole_operand<int32_t>(call, index)](int64_t begin, int64_t end) {
                  choose(mask.data + begin, begin, end - begin);
                });
  }
}

void run_where(const OpCall& call) {
  dispatch(call, [&]<typename T>(T*) {
    with_mask(call, 0,
              [select = call.kernels.of<T>().select, y = output<T>(call, 0),
               a = whole_operand<T>(call, 1), b = whole_operand<T>(call, 2)](
                  const int32_t* condition, int64_t begin, int64_t count) {
                select(condition, a.data + begin, b.data + begin, T(0), y + begin, count);
              });
  });
}

void where_vjp(GradientBuilder& builder, const Node& node) {
  for (size_t operand = 1; operand < 3; ++operand) {
    if (!builder.needs_gradient(node, operand)) continue;
    add_broadcast_gradient(builder, node, operand, "where_backward",
                           {node.inputs[0], builder.output_gradient(node)},
                           {{"branch", operand == 1}});
  }
}

std::vector<TensorType> infer_where_backward(const Node& node, std::span<const TensorType> inputs) {
  require_int(node, inputs, 0);
  require_float(node, inputs, 1);
  bool_attribute(node, "branch", true);  // its type is checked here
  require(broadcast_shape(node, inputs[0].shape, inputs[1].shape) == inputs[1].shape, node,
          "operand 0 is " + to_string(inputs[0].shape) + ", must broadcast to dy " +
              to_string(inputs[1].shape));
  return {inputs[1]};
}

void run_where_backward(const OpCall& call) {
  const bool branch = bool_attribute(call.node, "branch", true);
  dispatch(call, [&]<typename T>(T*) {
    const T* dy = input<T>(call, 1);
    T* dx = output<T>(call, 0);
    const auto select = call.kernels.of<T>().select;
    with_mask(call, 0, [=](const int32_t* condition, int64_t begin, int64_t count) {
      select(condition, branch ? dy + begin : nullptr, branch ? nullptr : dy + begin, T(0),
             dx + begin, count);
    });
  });
}

std::vector<TensorType> infer_masked_fill(const Node& node, std::span<const TensorType> inputs) {
  require_float(node, inputs, 0);
  require_int(node, inputs, 1);
  require(node.attributes.contains("value"), node, "attribute 'value' is missing");
  double_attribute(node, "value", 0);  // its type is checked here
  require(broadcast_shape(node, inputs[0].shape, inputs[1].shape) == inputs[0].shape, node,
          "operand 1 is " + to_string(inputs[1].shape) + ", must broadcast to x " +
              to_string(inputs[0].shape));
  return {inputs[0]};
}

void run_masked_fill(const OpCall& call) {
  dispatch(call, [&]<typename T>(T*) {
    const T value = static_cast<T>(double_attribute(call.node, "value", 0));
    const T* x = input<T>(call, 0);
    T* y = output<T>(call, 0);
    const auto select = call.kernels.of<T>().select;
    with_mask(call, 1, [=](const int32_t* mask, int64_t begin, int64_t count) {
      select(mask, nullptr, x + begin, value, y + begin, count);
    });
  });
}

void masked_fill_vjp(GradientBuilder& builder, const Node& node) {
  builder.add_node(node, "where_backward", {node.inputs[1], builder.output_gradient(node)},
                   {{"branch", false}}, {0});
}

}  // namespace

std::vector<OpDef> where_ops() {
  return {
      {.name = "where",
       .help = "y = a where the condition is not 0, else b; operands condition, a, b broadcast",
       .source = "torch.where; CUDA autocast: not listed, type promotion decides",
       .min_inputs = 3,
       .max_inputs = 3,
       .infer = infer_where,
       .vjp = where_vjp,
       .run = run_where,
       .foreign_names = {.mxnet = "where"},
       .elements = {.keeps_masks = true}},
      {.name = "masked_fill",
       .help = "y = the number `value` where the mask is not 0, else x; operands x, mask",
       .source = "torch.Tensor.masked_fill; CUDA autocast: not listed, runs in its input's type",
       .min_inputs = 2,
       .max_inputs = 2,
       .attributes = {"value"},
       .infer = infer_masked_fill,
       .vjp = masked_fill_vjp,
       .run = run_masked_fill,
       .foreign_names = {.mxnet = "where"},
       .elements = {.fill_attribute = "value", .keeps_masks = true}},
      {.name = "where_backward",
       .help = "dy where the condition is `branch`, else 0; operands condition, dy",
       .source = "chain rule of where and masked_fill",
       .min_inputs = 2,
       .max_inputs = 2,
       .attributes = {"branch"},
       .infer = infer_where_backward,
       .run = run_where_backward},
  };
}

}  // namespace lockstep
