// sdpa: scaled dot product attention, softmax(scale q k^T + mask) v, as one op.
//
// Where a lane of low precision rounds in between depends on the implementation; two are modelled.
//   math   q and k are each multiplied by sqrt(scale) and rounded; scores rounded; mask added and
//          rounded; softmax inside FP32, rounded; dropout, rounded; product with v
//          (torch's math backend where allow_fp16_bf16_reduction_math_sdp is set; without it torch
//          computes FP16 and BF16 in FP32 up to the result, which is not modelled)
//   flash  scores, mask and softmax stay FP32; the weights are rounded only as factors of the
//          product with v. The online rescaling of blocks is not modelled.
// The saved probabilities are those after softmax, before dropout, as the model leaves them.
#include <cmath>
#include <limits>

#include "src/graph/ops/broadcast.h"
#include "src/graph/ops/choice.h"
#include "src/graph/ops/inner_rounding.h"
#include "src/graph/ops/stacked_gemm.h"

namespace lockstep {
namespace {

// The op's roundings, see round_inner.
enum Part : uint64_t {
  kScaledQ = 1,
  kScaledK,
  kScores,
  kMasked,
  kProbabilities,
  kDropped,
  kGradient
};

struct AttentionShape {
  int64_t stacks, queries, keys, width, value_width;
  int64_t scores() const { return stacks * queries * keys; }
};
AttentionShape shape_of(const Shape& q, const Shape& k, const Shape& v) {
  return {element_count(batch_of(q)), matrix_of(q).rows, matrix_of(k).rows, matrix_of(q).cols,
          matrix_of(v).cols};
}
AttentionShape shape_of(const OpCall& call) {
  return shape_of(input_shape(call, 0), input_shape(call, 1), input_shape(call, 2));
}
Shape scores_shape(const Shape& q, const Shape& k) {
  Shape shape = batch_of(q);
  shape.insert(shape.end(), {matrix_of(q).rows, matrix_of(k).rows});
  return shape;
}

bool is_flash(const Node& node) {
  constexpr std::string_view kModels[] = {"math", "flash"};
  return choice_attribute(node, "model", kModels) == 1;
}
double scale_of(const Node& node, const AttentionShape& shape) {
  return double_attribute(node, "scale", 1 / std::sqrt(static_cast<double>(shape.width)));
}

void require_qkv(const Node& node, std::span<const TensorType> inputs) {
  for (size_t i = 0; i < 3; ++i) {
    require_float(node, inputs, i);
    require(inputs[i].shape.size() >= 2, node,
            "operand " + std::to_string(i) + " is " + to_string(inputs[i].shape) +
                ", must be (...,T,E)");
  }
  const Shape &q = inputs[0].shape, &k = inputs[1].shape, &v = inputs[2].shape;
  require(batch_of(q) == batch_of(k) && batch_of(q) == batch_of(v), node,
          "operands are " + to_string(q) + ", " + to_string(k) + " and " + to_string(v) +
              ", all extents but the last two must agree",
          "batch dimensions and heads are not broadcast: expand k and v");
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
            "has a mask and attribute 'causal', must have one of them",
            "put the triangle into the mask");
  }
  is_flash(node);
  Shape y = q;
  y.back() = matrix_of(inputs[2].shape).cols;
  std::vector<TensorType> outputs = {{y}, {scores}};
  if (active_dropout(node, "dropout_p") > 0) outputs.push_back({scores, ElementType::kInt});
  return outputs;
}

void sdpa_vjp(GradientBuilder& builder, const Node& node) {
  require(node.inputs.size() < 4 || !builder.needs_gradient(node, 3), node,
          "operand 3 needs a gradient, the mask has none", "make it an input or a buffer");
  std::vector<std::string> operands = {node.inputs[0], node.inputs[1], node.inputs[2],
                                       output_id(node, 1)};
  if (node.outputs.size() > 2) operands.push_back(output_id(node, 2));
  operands.push_back(builder.output_gradient(node));
  builder.add_node(node, "sdpa_backward", std::move(operands), node.attributes, {0, 1, 2});
}

// C (m,n) = op(a) op(b) for every stack. Factors made inside are read in the formats of q and k.
template <typename T>
void stacked_product(const OpCall& call, int64_t stacks, bool transpose_a, const T* a,
                     bool transpose_b, const T* b, int64_t m, int64_t n, int64_t k, T* c,
                     uint8_t* events = nullptr) {
  StackedGemm<T> stack;
  stack.count = stacks;
  GemmArgs<T>& gemm = stack.product;
  gemm.transpose_a = transpose_a, gemm.transpose_b = transpose_b;
  gemm.m = m, gemm.n = n, gemm.k = k;
  gemm.a = a, gemm.lda = transpose_a ? m : k;
  gemm.b = b, gemm.ldb = transpose_b ? k : n;
  gemm.c = c, gemm.ldc = n;
  gemm.accumulator = &call.gemm_accumulator;
  gemm.a_format = factor_format(call, 0), gemm.b_format = factor_format(call, 1);
  gemm.events = events;
  run_stacked_gemm(call.kernels, stack);
}

// x times sqrt|scale|, rounded, as a factor: what the math model multiplies q and k by.
template <typename T>
const T* scaled_factor(const OpCall& call, size_t operand, T root, Part part, std::vector<T>& own,
                       std::vector<T>& storage) {
  const int64_t count = call.inputs[operand]->size();
  own.resize(static_cast<size_t>(count));
  call.kernels.of<T>().scale(input<T>(call, operand), root, own.data(), count);
  round_inner(call, own.data(), count, part);
  return as_factor(call, factor_format(call, 0), own.data(), count, storage);
}

// Adds a float mask, or puts -inf where an integer mask is 0.
template <typename T>
void mask_scores(const OpCall& call, const AttentionShape& s, T* scores) {
  constexpr T kMinusInfinity = -std::numeric_limits<T>::infinity();
  if (bool_attribute(call.node, "causal", false)) {
    for (int64_t row = 0; row < s.stacks * s.queries; ++row) {
      const int64_t first = std::min(row % s.queries + 1, s.keys);
      std::fill(scores + row * s.keys + first, scores + (row + 1) * s.keys, kMinusInfinity);
    }
  }
  if (call.inputs.size() < 4) return;
  const Shape &from = input_shape(call, 3), &to = output_shape(call, 1);
  if (call.inputs[3]->container() != Container::kI32) {
    std::vector<T> storage;
    const T* mask = expand(input<T>(call, 3), from, to, storage);
    call.kernels.of<T>().add(scores, mask, scores, s.scores());
    return;
  }
  const std::span<const int32_t> keep = call.inputs[3]->as<int32_t>();
  const std::vector<T> as_numbers(keep.begin(), keep.end());
  std::vector<T> storage;
  const T* mask = expand(as_numbers.data(), from, to, storage);
  for (int64_t i = 0; i < s.scores(); ++i) {
    if (mask[i] == 0) scores[i] = kMinusInfinity;
  }
}

// Softmax in place; a row of -inf alone gives zeros, as torch's attention does.
template <typename T>
void safe_softmax(const OpCall& call, int64_t rows, int64_t cols, T* scores) {
  constexpr T kMinusInfinity = -std::numeric_limits<T>::infinity();
  std::vector<int64_t> masked_rows;
  for (int64_t row = 0; row < rows; ++row) {
    const T* x = scores + row * cols;
    if (x[0] == kMinusInfinity &&
        std::all_of(x, x + cols, [](T v) { return v == kMinusInfinity; })) {
      masked_rows.push_back(row);
    }
  }
  call.kernels.of<T>().softmax(scores, scores, rows, cols, call.reduce_accumulator);
  for (const int64_t row : masked_rows) std::fill_n(scores + row * cols, cols, T(0));
}

// The probabilities after dropout as the factor of v.
template <typename T>
const T* weights_of(const OpCall& call, const T* probabilities, const int32_t* mask, int64_t count,
                    std::vector<T>& own, std::vector<T>& storage) {
  own.assign(probabilities, probabilities + count);
  if (mask != nullptr) {
    const T scale = dropout_scale<T>(active_dropout(call.node, "dropout_p"));
    apply_mask(own.data(), mask, scale, own.data(), count);
  }
  round_inner(call, own.data(), count, kDropped);
  return as_factor(call, factor_format(call, 0), own.data(), count, storage);
}

void run_sdpa(const OpCall& call) {
  dispatch(call, [&]<typename T>(T*) {
    const AttentionShape s = shape_of(call);
    const double scale = scale_of(call.node, s);
    T* scores = output<T>(call, 1);
    std::vector<T> q_own, k_own, q_storage, k_storage;
    if (is_flash(call.node)) {
      stacked_product(call, s.stacks, false, input<T>(call, 0), true, input<T>(call, 1), s.queries,
                      s.keys, s.width, scores);
      call.kernels.of<T>().scale(scores, static_cast<T>(scale), scores, s.scores());
      mask_scores(call, s, scores);
      safe_softmax(call, s.stacks * s.queries, s.keys, scores);
    } else {
      const T root = static_cast<T>(std::sqrt(std::fabs(scale)));
      const T* q = scaled_factor(call, 0, static_cast<T>(std::copysign(root, scale)), kScaledQ,
                                 q_own, q_storage);
      const T* k = scaled_factor(call, 1, root, kScaledK, k_own, k_storage);
      stacked_product(call, s.stacks, false, q, true, k, s.queries, s.keys, s.width, scores);
      round_inner(call, scores, s.scores(), kScores);
      mask_scores(call, s, scores);
      round_inner(call, scores, s.scores(), kMasked);
      safe_softmax(call, s.stacks * s.queries, s.keys, scores);
      round_inner(call, scores, s.scores(), kProbabilities);
    }
    int32_t* mask = nullptr;
    if (call.outputs.size() > 2) {
      mask = output<int32_t>(call, 2);
      draw_inner_mask(call.random, active_dropout(call.node, "dropout_p"), 0, mask, s.scores());
    }
    std::vector<T> own, storage;
    const T* weights = weights_of(call, scores, mask, s.scores(), own, storage);
    stacked_product(call, s.stacks, false, weights, false, input<T>(call, 2), s.queries,
                    s.value_width, s.keys, output<T>(call, 0), call.events);
  });
}

// Operands q, k, v, probabilities, dropout mask?, dy.
std::vector<TensorType> infer_backward(const Node& node, std::span<const TensorType> inputs) {
  require_qkv(node, inputs);
  const Shape scores = scores_shape(inputs[0].shape, inputs[1].shape);
  require_float(node, inputs, 3);
  require_shape(node, inputs, 3, scores, "(...,T,S), the probabilities");
  if (inputs.size() > 5) {
    require_int(node, inputs, 4);
    require_shape(node, inputs, 4, scores, "(...,T,S), the dropout mask");
  }
  const size_t dy = inputs.size() - 1;
  Shape y = inputs[0].shape;
  y.back() = matrix_of(inputs[2].shape).cols;
  require_float(node, inputs, dy);
  require_shape(node, inputs, dy, y, "(...,T,Ev)");
  return {inputs[0], inputs[1], inputs[2]};
}

//   dweights = dy v^T;  dp = dweights mask / (1-p);  ds = p (dp - sum(dp p))
//   dq = scale ds k;  dk = scale ds^T q;  dv = weights^T dy
// math rounds dweights, dp and ds, and takes the scale in two halves as the forward pass did; flash
// rounds ds alone.
void run_backward(const OpCall& call) {
  dispatch(call, [&]<typename T>(T*) {
    const AttentionShape s = shape_of(call);
    const bool flash = is_flash(call.node);
    const double scale = scale_of(call.node, s);
    const T* p = input<T>(call, 3);
    const T* dy = input<T>(call, call.inputs.size() - 1);
    const int32_t* mask = call.inputs.size() > 5 ? input<int32_t>(call, 4) : nullptr;
    std::vector<T> own, storage;
    const T* weights = weights_of(call, p, mask, s.scores(), own, storage);
    stacked_product(call, s.stacks, true, weights, false, dy, s.keys, s.value_width, s.queries,
                    output<T>(call, 2));
    std::vector<T> ds(static_cast<size_t>(s.scores()));
    stacked_product(call, s.stacks, false, dy, true, input<T>(call, 2), s.queries, s.keys,
                    s.value_width, ds.data());
    if (!flash) round_inner(call, ds.data(), s.scores(), kScores);
    if (mask != nullptr) {
      const T keep = dropout_scale<T>(active_dropout(call.node, "dropout_p"));
      apply_mask(ds.data(), mask, keep, ds.data(), s.scores());
      if (!flash) round_inner(call, ds.data(), s.scores(), kMasked);
    }
    call.kernels.of<T>().softmax_backward(p, ds.data(), ds.data(), s.stacks * s.queries, s.keys,
                                          call.reduce_accumulator);
    round_inner(call, ds.data(), s.scores(), kGradient);
    const T* factor = as_factor(call, factor_format(call, 0), ds.data(), s.scores(), storage);

    const T* q = input<T>(call, 0);
    const T* k = input<T>(call, 1);
    std::vector<T> q_own, k_own, q_storage, k_storage;
    T q_scale = static_cast<T>(scale), k_scale = q_scale;  // what dq and dk are multiplied by
    if (!flash) {
      const T root = static_cast<T>(std::sqrt(std::fabs(scale)));
      q_scale = static_cast<T>(std::copysign(root, scale)), k_scale = root;
      q = scaled_factor(call, 0, q_scale, kScaledQ, q_own, q_storage);
      k = scaled_factor(call, 1, k_scale, kScaledK, k_own, k_storage);
    }
    T *dq = output<T>(call, 0), *dk = output<T>(call, 1);
    stacked_product(call, s.stacks, false, factor, false, k, s.queries, s.width, s.keys, dq);
    stacked_product(call, s.stacks, true, factor, false, q, s.keys, s.width, s.queries, dk);
    if (!flash) {
      round_inner(call, dq, call.outputs[0]->size(), kGradient + 1);
      round_inner(call, dk, call.outputs[1]->size(), kGradient + 2);
    }
    call.kernels.of<T>().scale(dq, q_scale, dq, call.outputs[0]->size());
    call.kernels.of<T>().scale(dk, k_scale, dk, call.outputs[1]->size());
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
  const std::vector<std::string_view> attributes = {"scale", "causal", "dropout_p", "model",
                                                    "training"};
  constexpr int kAccumulatorFormat = -2;
  return {
      {.name = "sdpa",
       .help = "y = dropout(softmax(scale q k^T + mask)) v; q (...,T,E), k (...,S,E), v (...,S,F), "
               "mask? broadcast to (...,T,S): integers, nonzero = keep, or floats, added; causal: "
               "key s <= query t; a row without keys gives 0; outputs y, the probabilities and, "
               "where it drops, the mask. The accumulator site is that of the product with v",
       .source = "torch.nn.functional.scaled_dot_product_attention; CUDA autocast: "
                 "lower_precision_fp. Flash: T. Dao et al., FlashAttention, NeurIPS 2022",
       .cast_class = CastClass::kLowPrecision,
       .min_inputs = 3,
       .max_inputs = 4,
       .has_gemm_accumulator = true,
       .output_follows = {-1, kAccumulatorFormat},
       .attributes = attributes,
       .infer = infer_sdpa,
       .vjp = sdpa_vjp,
       .run = run_sdpa,
       .product_operands = {0, 1, 2},
       .products = forward_products},
      {.name = "sdpa_backward",
       .help = "dq, dk, dv; operands q, k, v, probabilities, dropout mask?, dy",
       .source = "chain rule of sdpa",
       .cast_class = CastClass::kLowPrecision,
       .min_inputs = 5,
       .max_inputs = 6,
       .has_gemm_accumulator = true,
       .attributes = attributes,
       .infer = infer_backward,
       .run = run_backward,
       .is_factor = [](const Node& node, size_t i) { return i < 3 || i + 1 == node.inputs.size(); },
       .shows_sums = false,
       .products = backward_products},
  };
}

}  // namespace lockstep
