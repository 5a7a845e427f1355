// linear: y = x w^T + b, a fully connected layer, with its three gradients.
// The sum of products goes through the GEMM accumulator. The bias is added in the container's
// precision and the result is rounded once, as in a GEMM's epilogue. With `separate_bias` the sums
// are rounded first: PyTorch adds the bias to a finished matmul if x is neither a matrix nor
// contiguous (nn.MultiheadAttention with batch_first).
#include "src/graph/ops/inner_op.h"
#include "src/graph/ops/op_helpers.h"
#include "src/graph/ops/sum_samples.h"

namespace lockstep {
namespace {

// The rows of x: all extents but the last multiplied.
int64_t rows_of(const Shape& shape) {
  return element_count(shape) / shape.back();
}

Shape with_last(Shape shape, int64_t last) {
  shape.back() = last;
  return shape;
}

std::vector<TensorType> infer_linear(const Node& node, std::span<const TensorType> inputs) {
  require_floats(node, inputs);
  require(!inputs[0].shape.empty(), node, "operand 0 is a scalar, must be (..., in_features)");
  require_rank(node, inputs, 1, 2, "(out_features, in_features)");
  const int64_t in_features = inputs[0].shape.back(), out_features = inputs[1].shape[0];
  require_shape(node, inputs, 1, {out_features, in_features}, "(out_features, in_features)");
  if (inputs.size() == 3) require_shape(node, inputs, 2, {out_features}, "(out_features)");
  bool_attribute(node, "separate_bias", false);  // its type is checked here
  return {{with_last(inputs[0].shape, out_features)}};
}

void linear_vjp(GradientBuilder& builder, const Node& node) {
  const std::string dy = builder.output_gradient(node);
  if (builder.needs_gradient(node, 0)) {
    builder.add_node(node, "linear_backward_input", {node.inputs[1], dy}, {}, {0});
  }
  if (builder.needs_gradient(node, 1)) {
    builder.add_node(node, "linear_backward_weight", {node.inputs[0], dy}, {}, {1});
  }
  if (node.inputs.size() == 3 && builder.needs_gradient(node, 2)) {
    builder.add_node(node, "linear_backward_bias", {dy}, {}, {2});
  }
}

// Adds the bias (N) to elements [begin, end) of y (M,N).
template <typename T>
void add_bias(const Kernels<T>& kernels, const T* bias, int64_t n, T* y, int64_t begin,
              int64_t end) {
  const auto add_part = [&](int64_t to) {
    kernels.add(y + begin, bias + begin % n, y + begin, to - begin);
    begin = to;
  };
  if (begin % n != 0) add_part(std::min(end, (begin / n + 1) * n));
  const int64_t rows = (end - begin) / n;
  kernels.add_channels(y + begin, bias, rows, n, /*plane=*/1);
  begin += rows * n;
  if (begin < end) add_part(end);
}

void run_linear(const OpCall& call) {
  dispatch(call, [&]<typename T>(T*) {
    const int64_t m = rows_of(input_shape(call, 0));
    const int64_t n = input_shape(call, 1)[0], k = input_shape(call, 1)[1];
    T* y = output<T>(call, 0);  // (M,N)
    GemmArgs<T> gemm{.transpose_b = true, .m = m, .n = n, .k = k};
    gemm.a = input<T>(call, 0), gemm.lda = k;  // x (M,K)
    gemm.b = input<T>(call, 1), gemm.ldb = k;  // w (N,K)
    gemm.c = y, gemm.ldc = n;
    gemm.accumulator = &call.gemm_accumulator, gemm.events = call.events;
    gemm.a_format = factor_format(call, 0), gemm.b_format = factor_format(call, 1);
    if (call.inputs.size() < 3) return run_output_product(call, gemm);
    run_product(call, gemm);
    if (call.sums_ready) call.sums_ready();
    if (bool_attribute(call.node, "separate_bias", false)) {
      inner_math<T>(call, 0, 1).round(y, m * n, /*part=*/1);
    }
    fill_output(call,
                [y, n, bias = input<T>(call, 2), &kernels = call.kernels.of<T>()](
                    int64_t begin, int64_t end) { add_bias(kernels, bias, n, y, begin, end); });
  });
}

std::vector<TensorType> infer_backward_input(const Node& node, std::span<const TensorType> inputs) {
  require_floats(node, inputs);
  require_rank(node, inputs, 0, 2, "(out_features, in_features)");
  const Shape& w = inputs[0].shape;
  require(!inputs[1].shape.empty() && inputs[1].shape.back() == w[0], node,
          "operand 1 is " + to_string(inputs[1].shape) + ", its last extent must be out_features " +
              std::to_string(w[0]));
  return {{with_last(inputs[1].shape, w[1])}};
}

void run_backward_input(const OpCall& call) {
  dispatch(call, [&]<typename T>(T*) {
    const int64_t n = input_shape(call, 0)[0], k = input_shape(call, 0)[1];
    GemmArgs<T> gemm{.m = rows_of(input_shape(call, 1)), .n = k, .k = n};
    gemm.a = input<T>(call, 1), gemm.lda = n;   // dy (M,N)
    gemm.b = input<T>(call, 0), gemm.ldb = k;   // w (N,K)
    gemm.c = output<T>(call, 0), gemm.ldc = k;  // dx (M,K)
    gemm.accumulator = &call.gemm_accumulator, gemm.events = call.events;
    gemm.a_format = factor_format(call, 1), gemm.b_format = factor_format(call, 0);
    run_output_product(call, gemm);
  });
}

std::vector<TensorType> infer_backward_weight(const Node& node,
                                              std::span<const TensorType> inputs) {
  require_floats(node, inputs);
  const Shape &x = inputs[0].shape, &dy = inputs[1].shape;
  require(!x.empty() && !dy.empty() && with_last(x, dy.back()) == dy, node,
          "operands are " + to_string(x) + " and " + to_string(dy) +
              ", all extents but the last must agree");
  return {{{dy.back(), x.back()}}};
}

void run_backward_weight(const OpCall& call) {
  dispatch(call, [&]<typename T>(T*) {
    const int64_t k = input_shape(call, 0).back(), n = input_shape(call, 1).back();
    GemmArgs<T> gemm{.transpose_a = true, .m = n, .n = k, .k = rows_of(input_shape(call, 0))};
    gemm.a = input<T>(call, 1), gemm.lda = n;   // dy (M,N), read as (N,M)
    gemm.b = input<T>(call, 0), gemm.ldb = k;   // x (M,K)
    gemm.c = output<T>(call, 0), gemm.ldc = k;  // dw (N,K)
    gemm.accumulator = &call.gemm_accumulator, gemm.events = call.events;
    gemm.a_format = factor_format(call, 1), gemm.b_format = factor_format(call, 0);
    run_output_product(call, gemm);
  });
}

std::vector<TensorType> infer_backward_bias(const Node& node, std::span<const TensorType> inputs) {
  require_floats(node, inputs);
  require(!inputs[0].shape.empty(), node, "operand 0 is a scalar, must be (..., out_features)");
  return {{{inputs[0].shape.back()}}};
}

void run_backward_bias(const OpCall& call) {
  dispatch(call, [&]<typename T>(T*) {
    const Shape& dy = input_shape(call, 0);
    call.kernels.of<T>().channel_sum(input<T>(call, 0), output<T>(call, 0), rows_of(dy), dy.back(),
                                     1, call.reduce_accumulator);
  });
}

std::vector<ProductShape> linear_product(const Node& node, std::span<const TensorType> inputs) {
  return {{1, rows_of(inputs[0].shape), node.outputs[0].shape.back(), inputs[0].shape.back()}};
}
std::vector<ProductShape> backward_input_product(const Node& node,
                                                 std::span<const TensorType> inputs) {
  return {{1, rows_of(inputs[1].shape), node.outputs[0].shape.back(), inputs[1].shape.back()}};
}
std::vector<ProductShape> backward_weight_product(const Node& node,
                                                  std::span<const TensorType> inputs) {
  return {{1, node.outputs[0].shape[0], node.outputs[0].shape[1], rows_of(inputs[0].shape)}};
}

}  // namespace

std::vector<OpDef> linear_ops() {
  const std::vector<std::string_view> attributes = {"separate_bias"};
  return {
      {.name = "linear",
       .help =
           "y = x w^T + b; x (...,K), w (N,K), b (N) or absent, y (...,N); separate_bias: x w^T "
           "is rounded before b is added",
       .source = "torch.nn.functional.linear; CUDA autocast: lower_precision_fp",
       .cast_class = CastClass::kLowPrecision,
       .min_inputs = 2,
       .max_inputs = 3,
       .attributes = attributes,
       .infer = infer_linear,
       .vjp = linear_vjp,
       .run = run_linear,
       .foreign_names = {.mxnet = "FullyConnected"},
       .sums = {.of_products = true, .axes = {1, 1}, .products = linear_product},
       .meaning = {.first_values = FirstValues::kFanIn}},
      {.name = "linear_backward_input",
       .help = "dx = dy w; w (N,K), dy (...,N), dx (...,K); sums over N",
       .source = "chain rule of linear",
       .cast_class = CastClass::kLowPrecision,
       .min_inputs = 2,
       .max_inputs = 2,
       .infer = infer_backward_input,
       .run = run_backward_input,
       .sums = {.of_products = true, .axes = {0, 1}, .products = backward_input_product}},
      {.name = "linear_backward_weight",
       .help = "dw = dy^T x; x (...,K), dy (...,N), dw (N,K); sums over the rows",
       .source = "chain rule of linear",
       .cast_class = CastClass::kLowPrecision,
       .min_inputs = 2,
       .max_inputs = 2,
       .infer = infer_backward_weight,
       .run = run_backward_weight,
       .sums = {.of_products = true, .axes = {0, 0}, .products = backward_weight_product}},
      {.name = "linear_backward_bias",
       .help = "db = sum over the rows of dy; dy (...,N), db (N)",
       .source = "chain rule of linear",
       .cast_class = CastClass::kLowPrecision,
       .infer = infer_backward_bias,
       .run = run_backward_bias},
  };
}

}  // namespace lockstep
