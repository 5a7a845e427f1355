// dropout: y = x mask / (1 - p), with a mask that is given (from a capture) or drawn here.
#include "src/graph/ops/broadcast.h"
#include "src/graph/ops/inner_op.h"

namespace lockstep {
namespace {

// 0 if nothing is dropped. Throws: InputError for a number that is not a probability.
double dropped_share(const Node& node) {
  constexpr double kTorchDefault = 0.5;
  return active_dropout(node, "p", kTorchDefault);
}

void require_mask(const Node& node, const Shape& x, const Shape& mask) {
  require(broadcast_shape(node, x, mask) == x, node,
          "operand 1 is " + to_string(mask) + ", must broadcast to operand 0 " + to_string(x));
}

std::vector<TensorType> infer_dropout(const Node& node, std::span<const TensorType> inputs) {
  require_float(node, inputs, 0);
  dropped_share(node);
  if (inputs.size() == 1) return {inputs[0], {inputs[0].shape, ElementType::kInt}};
  require_int(node, inputs, 1);
  require_mask(node, inputs[0].shape, inputs[1].shape);
  return {inputs[0], inputs[1]};
}

// Fills output 1, the mask in effect.
void make_mask(const OpCall& call) {
  int32_t* mask = output<int32_t>(call, 1);
  const int64_t count = call.outputs[1]->size();
  if (dropped_share(call.node) == 0) {
    call.kernels.i32.movement.fill(1, mask, count);
  } else if (call.inputs.size() == 2) {
    std::copy_n(input<int32_t>(call, 1), count, mask);
  } else {
    draw_output_mask(call, dropped_share(call.node), 1);
  }
}

// Depends only on output 0's format: dropout sums nothing and has no factors.
template <typename T>
T scale_of(const OpCall& call) {
  InnerMath<T> math;
  math.kernels = &call.kernels.of<T>();
  math.rounding = call.inner;
  math.rounds_dropout_scale = call.rounds_dropout_scale;
  return math.scale_of_dropout(dropped_share(call.node));
}

// Output 0: operand 0, as far as the mask keeps it.
void scale_kept(const OpCall& call, const Tensor& mask) {
  const auto storage = std::make_shared<std::vector<int32_t>>();
  const int32_t* whole = expand(call.kernels, mask.as<int32_t>().data(), mask.shape(),
                                output_shape(call, 0), *storage);
  dispatch(call, [&]<typename T>(T*) {
    fill_output(call, [storage, whole, masked_scale = call.kernels.of<T>().masked_scale,
                       x = input<T>(call, 0), y = output<T>(call, 0),
                       scale = scale_of<T>(call)](int64_t begin, int64_t end) {
      masked_scale(x + begin, whole + begin, scale, y + begin, end - begin);
    });
  });
}

void run_dropout(const OpCall& call) {
  make_mask(call);
  scale_kept(call, *call.outputs[1]);
}

void dropout_vjp(GradientBuilder& builder, const Node& node) {
  builder.add_node(node, "dropout_backward", {builder.output_gradient(node), output_id(node, 1)},
                   node.attributes, {0});
}

std::vector<TensorType> infer_backward(const Node& node, std::span<const TensorType> inputs) {
  require_float(node, inputs, 0);
  require_int(node, inputs, 1);
  dropped_share(node);
  require_mask(node, inputs[0].shape, inputs[1].shape);
  return {inputs[0]};
}

void run_backward(const OpCall& call) {
  scale_kept(call, *call.inputs[1]);
}

}  // namespace

std::vector<OpDef> dropout_ops() {
  return {
      {.name = "dropout",
       .help = "y, mask: y = x mask / (1 - p); operands x, mask? (0 or 1, may be broadcast; drawn "
               "from (seed, step, node) if absent); x itself if training is false or p is 0",
       .source = "torch.nn.functional.dropout; CUDA autocast: not listed, runs in its input's type",
       .min_inputs = 1,
       .max_inputs = 2,
       .attributes = {"p", "training"},
       .infer = infer_dropout,
       .vjp = dropout_vjp,
       .run = run_dropout,
       .foreign_names = {.mxnet = "Dropout"},
       .formats = {.integer_bytes = 1},
       .meaning = {.draws_mask = [](const Node& node) { return dropped_share(node) > 0; }}},
      {.name = "dropout_backward",
       .help = "dx = dy mask / (1 - p); operands dy, mask",
       .source = "chain rule of dropout",
       .min_inputs = 2,
       .max_inputs = 2,
       .attributes = {"p", "training"},
       .infer = infer_backward,
       .run = run_backward},
  };
}

}  // namespace lockstep
