// sdpa: scaled dot product attention, softmax(scale q k^T + mask) v, as one op. The roundings
// inside a lane of low precision are in emulation/kernels/args/attention_args.h; `model` selects
// them:
//   math          torch's math backend: FP16 and BF16 are widened to FP32 and rounded at the result
//   math_reduced  the same with allow_fp16_bf16_reduction_math_sdp: rounded after every part
//   flash         fused kernels; the policy selects one (emulation/kernels/flash_kernel.cc)
#include <cmath>

#include "emulation/kernels/args/attention_args.h"
#include "src/graph/ops/broadcast.h"
#include "src/graph/ops/choice.h"
#include "src/graph/ops/inner_op.h"
#include "src/graph/ops/matrix_shape.h"

namespace lockstep {
namespace {

AttentionShape shape_of(const Shape& q, const Shape& k, const Shape& v) {
  const int64_t stacks = element_count(batch_of(q));
  const auto group = [&](const Shape& shared) {
    return stacks == 0 ? 1 : stacks / element_count(batch_of(shared));
  };
  return {stacks,   matrix_of(q).rows, matrix_of(k).rows, matrix_of(q).cols, matrix_of(v).cols,
          group(k), group(v)};
}
AttentionShape shape_of(const OpCall& call) {
  return shape_of(input_shape(call, 0), input_shape(call, 1), input_shape(call, 2));
}
Shape scores_shape(const Shape& q, const Shape& k) {
  Shape shape = batch_of(q);
  shape.insert(shape.end(), {matrix_of(q).rows, matrix_of(k).rows});
  return shape;
}

AttentionModel model_of(const Node& node) {
  constexpr std::string_view kModels[] = {"math", "math_reduced", "flash"};
  return static_cast<AttentionModel>(choice_attribute(node, "model", kModels));
}
bool computes_wide(const Node& node) {
  return model_of(node) == AttentionModel::kMath;
}
double scale_of(const Node& node, const AttentionShape& shape) {
  return double_attribute(node, "scale", 1 / std::sqrt(static_cast<double>(shape.width)));
}

// All batch dimensions agree; with `gqa` the last one, the heads, of q is a multiple of the
// other's.
bool batches_fit(const Shape& q, const Shape& shared, bool grouped) {
  Shape a = batch_of(q), b = batch_of(shared);
  if (a == b) return true;
  if (!grouped || a.size() != b.size() || a.empty()) return false;
  const int64_t heads = a.back(), shared_heads = b.back();
  a.pop_back(), b.pop_back();
  return a == b && shared_heads > 0 && heads % shared_heads == 0;
}

void require_qkv(const Node& node, std::span<const TensorType> inputs) {
  for (size_t i = 0; i < 3; ++i) {
    require_float(node, inputs, i);
    require(inputs[i].shape.size() >= 2, node,
            "operand " + std::to_string(i) + " is " + to_string(inputs[i].shape) +
                ", must be (...,T,E)");
  }
  const Shape &q = inputs[0].shape, &k = inputs[1].shape, &v = inputs[2].shape;
  const bool grouped = bool_attribute(node, "gqa", false);
  require(batches_fit(q, k, grouped) && batches_fit(q, v, grouped), node,
          "operands are " + to_string(q) + ", " + to_string(k) + " and " + to_string(v) +
              (grouped ? ", all extents but the last three must agree, and the heads of q be a "
                         "multiple of those of k and v"
                       : ", all extents but the last two must agree"),
          grouped ? "" : "attribute 'gqa' lets heads share; other dimensions are not broadcast");
  require(matrix_of(q).cols == matrix_of(k).cols, node,
          "q has " + std::to_string(matrix_of(q).cols) + " features and k " +
              std::to_string(matrix_of(k).cols) + ", must be equal");
  require(matrix_of(k).rows == matrix_of(v).rows && matrix_of(k).rows > 0, node,
          "k has " + std::to_string(matrix_of(k).rows) + " rows and v " +
              std::to_string(matrix_of(v).rows) + ", must be equal and at least 1");
}

std::vector<TensorType> infer_sdpa(const Node& node, std::span<const TensorType> inputs) {
  require_qkv(node, inputs);
  const Shape &q = inputs[0].shape, &k = inputs[1].shape;
  const Shape scores = scores_shape(q, k);
  if (inputs.size() > 3) {
    require(broadcast_shape(node, inputs[3].shape, scores) == scores, node,
            "operand 3 is " + to_string(inputs[3].shape) + ", must broadcast to " +
                to_string(scores) + " = (...,T,S)");
    require(!bool_attribute(node, "causal", false), node,
            "has a mask and attribute 'causal', must have only one of them",
            "put the triangle into the mask");
  }
  model_of(node);
  scale_of(node, {});  // its type is checked here, as is that of 'causal'
  bool_attribute(node, "causal", false);
  Shape y = q;
  y.back() = matrix_of(inputs[2].shape).cols;
  std::vector<TensorType> outputs = {{y}, {scores}};
  if (active_dropout(node, "dropout_p") > 0) outputs.push_back({scores, ElementType::kInt});
  return outputs;
}

void sdpa_vjp(GradientBuilder& builder, const Node& node) {
  require(node.inputs.size() < 4 || !builder.needs_gradient(node, 3), node,
          "operand 3 needs a gradient, but the mask has none", "make it an input or a buffer");
  std::vector<std::string> operands = {node.inputs[0], node.inputs[1], node.inputs[2],
                                       output_id(node, 1), output_id(node, 0)};
  if (node.outputs.size() > 2) operands.push_back(output_id(node, 2));
  operands.push_back(builder.output_gradient(node));
  builder.add_node(node, "sdpa_backward", std::move(operands), node.attributes, {0, 1, 2});
}

void run_sdpa(const OpCall& call) {
  dispatch(call, [&]<typename T>(T*) {
    AttentionForward<T> args{shape_of(call), model_of(call.node), call.flash_kernel,
                             inner_math<T>(call, 0, 1), scale_of(call.node, shape_of(call))};
    args.causal = bool_attribute(call.node, "causal", false);
    args.q = input<T>(call, 0), args.k = input<T>(call, 1), args.v = input<T>(call, 2);
    std::vector<T> added;
    std::vector<int32_t> kept;
    if (call.inputs.size() > 3) {
      const Shape &from = input_shape(call, 3), &to = output_shape(call, 1);
      if (call.inputs[3]->container() == Container::kI32) {
        args.keep_mask = expand(call.kernels, input<int32_t>(call, 3), from, to, kept);
      } else {
        args.added_mask = expand(call.kernels, input<T>(call, 3), from, to, added);
      }
    }
    if (call.outputs.size() > 2) {
      args.dropout = active_dropout(call.node, "dropout_p");
      draw_output_mask(call, args.dropout, 2);
      args.dropout_mask = output<int32_t>(call, 2);
    }
    args.y = output<T>(call, 0), args.probabilities = output<T>(call, 1);
    args.events = call.events;
    call.kernels.of<T>().attention_forward(args);
  });
}

// Operands q, k, v, probabilities, y, dropout mask?, dy.
std::vector<TensorType> infer_backward(const Node& node, std::span<const TensorType> inputs) {
  require_qkv(node, inputs);
  const Shape scores = scores_shape(inputs[0].shape, inputs[1].shape);
  require_float(node, inputs, 3);
  require_shape(node, inputs, 3, scores, "(...,T,S), the probabilities");
  Shape y = inputs[0].shape;
  y.back() = matrix_of(inputs[2].shape).cols;
  for (const size_t i : {size_t{4}, inputs.size() - 1}) {
    require_float(node, inputs, i);
    require_shape(node, inputs, i, y, "(...,T,F)");
  }
  if (inputs.size() > 6) {
    require_int(node, inputs, 5);
    require_shape(node, inputs, 5, scores, "(...,T,S), the dropout mask");
  }
  return {inputs[0], inputs[1], inputs[2]};
}

void run_backward(const OpCall& call) {
  dispatch(call, [&]<typename T>(T*) {
    AttentionBackward<T> args{shape_of(call), model_of(call.node), call.flash_kernel,
                              inner_math<T>(call, 0, 1), scale_of(call.node, shape_of(call))};
    args.q = input<T>(call, 0), args.k = input<T>(call, 1), args.v = input<T>(call, 2);
    args.probabilities = input<T>(call, 3), args.y = input<T>(call, 4);
    args.dy = input<T>(call, call.inputs.size() - 1);
    if (call.inputs.size() > 6) args.dropout_mask = input<int32_t>(call, 5);
    args.dropout = active_dropout(call.node, "dropout_p");
    args.dq = output<T>(call, 0), args.dk = output<T>(call, 1), args.dv = output<T>(call, 2);
    call.kernels.of<T>().attention_backward(args);
  });
}

std::vector<ProductShape> forward_products(const Node&, std::span<const TensorType> inputs) {
  const AttentionShape s = shape_of(inputs[0].shape, inputs[1].shape, inputs[2].shape);
  return {{s.stacks, s.queries, s.keys, s.width}, {s.stacks, s.queries, s.value_width, s.keys}};
}
std::vector<ProductShape> backward_products(const Node&, std::span<const TensorType> inputs) {
  const AttentionShape s = shape_of(inputs[0].shape, inputs[1].shape, inputs[2].shape);
  return {{s.stacks, s.queries, s.keys, s.value_width},   // dweights
          {s.stacks, s.queries, s.width, s.keys},         // dq
          {s.stacks, s.keys, s.width, s.queries},         // dk
          {s.stacks, s.keys, s.value_width, s.queries}};  // dv
}

}  // namespace

std::vector<OpDef> sdpa_ops() {
  const std::vector<std::string_view> attributes = {"scale", "causal", "dropout_p",
                                                    "gqa",   "model",  "training"};
  constexpr int kMaskBytes = 1;
  return {
      {.name = "sdpa",
       .help =
           "y = dropout(softmax(scale q k^T + mask)) v; q (...,T,E), k (...,S,E), v (...,S,F), "
           "mask? broadcast to (...,T,S): integers, nonzero = keep, or floats, added; causal: "
           "key s <= query t; gqa: consecutive heads of q share one of k and v; a row without keys "
           "gives 0; model: math, math_reduced or flash; outputs y, the probabilities and, "
           "with dropout, the mask. The accumulator site belongs to the product with v",
       .source = "torch.nn.functional.scaled_dot_product_attention; CUDA autocast: "
                 "lower_precision_fp. Flash: T. Dao et al., FlashAttention, NeurIPS 2022",
       .cast_class = CastClass::kLowPrecision,
       .min_inputs = 3,
       .max_inputs = 4,
       .attributes = attributes,
       .infer = infer_sdpa,
       .vjp = sdpa_vjp,
       .run = run_sdpa,
       .foreign_names = {.torch = "scaled_dot_product_attention"},
       .sums = {.of_products = true,
                .operands = {0, 1, 2},
                .are_kept = true,
                .products = forward_products},
       .formats = {.output_follows = {kFollowsOutput0, kFollowsAccumulator},
                   .computes_wide = computes_wide,
                   .integer_bytes = kMaskBytes},
       .meaning = {.draws_mask = draws_where_it_has_one}},
      {.name = "sdpa_backward",
       .help = "dq, dk, dv; operands q, k, v, probabilities, y, dropout mask?, dy",
       .source = "chain rule of sdpa",
       .cast_class = CastClass::kLowPrecision,
       .min_inputs = 6,
       .max_inputs = 7,
       .attributes = attributes,
       .infer = infer_backward,
       .run = run_backward,
       .sums = {.of_products = true,
                .is_factor = [](const Node& node,
                                size_t i) { return i < 3 || i + 1 == node.inputs.size(); },
                .are_shown = false,
                .are_kept = true,
                .products = backward_products},
       .formats = {.computes_wide = computes_wide}},
  };
}

}  // namespace lockstep
