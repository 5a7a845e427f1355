// matmul: C = op(A) op(B) on matrices or stacks of them, op being the transposition of the last two
// dimensions on request. Leading (batch) dimensions must be equal: they are not broadcast.
#include "src/graph/ops/op_helpers.h"

namespace lockstep {
namespace {

struct MatrixShape {
  int64_t batch, rows, cols;  // as stored
};
MatrixShape matrix_shape(const Shape& s) {
  const size_t r = s.size();
  return {element_count(s) / (s[r - 2] * s[r - 1]), s[r - 2], s[r - 1]};
}

// The shape with the last two extents replaced.
Shape with_matrix(Shape shape, int64_t rows, int64_t cols) {
  shape[shape.size() - 2] = rows;
  shape.back() = cols;
  return shape;
}

void require_stacks(const Node& node, std::span<const TensorType> inputs) {
  require_floats(node, inputs);
  const Shape &a = inputs[0].shape, &b = inputs[1].shape;
  require(a.size() >= 2 && a.size() == b.size(), node,
          "operands are " + to_string(a) + " and " + to_string(b) +
              ", must have equally many dimensions, at least 2");
  require(with_matrix(a, 1, 1) == with_matrix(b, 1, 1), node,
          "operands are " + to_string(a) + " and " + to_string(b) +
              ", all extents but the last two must agree",
          "batch dimensions are not broadcast");
}

std::vector<TensorType> infer_matmul(const Node& node, std::span<const TensorType> inputs) {
  require_stacks(node, inputs);
  const bool ta = bool_attribute(node, "transpose_a", false);
  const bool tb = bool_attribute(node, "transpose_b", false);
  const MatrixShape a = matrix_shape(inputs[0].shape), b = matrix_shape(inputs[1].shape);
  const int64_t m = ta ? a.cols : a.rows, k = ta ? a.rows : a.cols;
  const int64_t n = tb ? b.rows : b.cols, k_of_b = tb ? b.cols : b.rows;
  require(k == k_of_b, node,
          "inner extents are " + std::to_string(k) + " and " + std::to_string(k_of_b) +
              ", must be equal (operands " + to_string(inputs[0].shape) + " and " +
              to_string(inputs[1].shape) + ")");
  return {{with_matrix(inputs[0].shape, m, n)}};
}

void matmul_vjp(GradientBuilder& builder, const Node& node) {
  const std::string dc = builder.output_gradient(node);
  if (builder.needs_gradient(node, 0)) {
    builder.add_node(node, "matmul_backward_a", {node.inputs[1], dc}, node.attributes, {0});
  }
  if (builder.needs_gradient(node, 1)) {
    builder.add_node(node, "matmul_backward_b", {node.inputs[0], dc}, node.attributes, {1});
  }
}

// out = op(left) op(right), matrix by matrix; operands are indices of the call's inputs.
void run_stack(const OpCall& call, size_t left, bool transpose_left, size_t right,
               bool transpose_right) {
  dispatch(call, [&]<typename T>(T*) {
    const MatrixShape a = matrix_shape(input_shape(call, left));
    const MatrixShape b = matrix_shape(input_shape(call, right));
    const MatrixShape c = matrix_shape(output_shape(call, 0));
    const int64_t matrix = c.rows * c.cols;
    for (int64_t i = 0; i < c.batch; ++i) {
      GemmArgs<T> gemm{.transpose_a = transpose_left, .transpose_b = transpose_right};
      gemm.m = c.rows, gemm.n = c.cols, gemm.k = transpose_left ? a.rows : a.cols;
      gemm.a = input<T>(call, left) + i * a.rows * a.cols, gemm.lda = a.cols;
      gemm.b = input<T>(call, right) + i * b.rows * b.cols, gemm.ldb = b.cols;
      gemm.c = output<T>(call, 0) + i * matrix, gemm.ldc = c.cols;
      gemm.accumulator = &call.gemm_accumulator;
      gemm.a_format = factor_format(call, left), gemm.b_format = factor_format(call, right);
      gemm.events = call.events ? call.events + i * matrix : nullptr;
      call.kernels.of<T>().gemm(gemm);
    }
  });
}

void run_matmul(const OpCall& call) {
  run_stack(call, 0, bool_attribute(call.node, "transpose_a", false), 1,
            bool_attribute(call.node, "transpose_b", false));
}

// Operands (b, dc). dA = dC op(B)^T; where A was transposed, dA = op(B) dC^T.
std::vector<TensorType> infer_backward_a(const Node& node, std::span<const TensorType> inputs) {
  require_stacks(node, inputs);
  const bool ta = bool_attribute(node, "transpose_a", false);
  const bool tb = bool_attribute(node, "transpose_b", false);
  const MatrixShape b = matrix_shape(inputs[0].shape), dc = matrix_shape(inputs[1].shape);
  const int64_t m = dc.rows, n = tb ? b.rows : b.cols, k = tb ? b.cols : b.rows;
  require(dc.cols == n, node,
          "operand 1 is " + to_string(inputs[1].shape) + ", its last extent must be " +
              std::to_string(n));
  return {{with_matrix(inputs[1].shape, ta ? k : m, ta ? m : k)}};
}

void run_backward_a(const OpCall& call) {
  const bool tb = bool_attribute(call.node, "transpose_b", false);
  if (bool_attribute(call.node, "transpose_a", false)) {
    run_stack(call, 0, tb, 1, true);
  } else {
    run_stack(call, 1, false, 0, !tb);
  }
}

// Operands (a, dc). dB = op(A)^T dC; where B was transposed, dB = dC^T op(A).
std::vector<TensorType> infer_backward_b(const Node& node, std::span<const TensorType> inputs) {
  require_stacks(node, inputs);
  const bool ta = bool_attribute(node, "transpose_a", false);
  const bool tb = bool_attribute(node, "transpose_b", false);
  const MatrixShape a = matrix_shape(inputs[0].shape), dc = matrix_shape(inputs[1].shape);
  const int64_t m = ta ? a.cols : a.rows, k = ta ? a.rows : a.cols, n = dc.cols;
  require(dc.rows == m, node,
          "operand 1 is " + to_string(inputs[1].shape) + ", its last extent but one must be " +
              std::to_string(m));
  return {{with_matrix(inputs[1].shape, tb ? n : k, tb ? k : n)}};
}

void run_backward_b(const OpCall& call) {
  const bool ta = bool_attribute(call.node, "transpose_a", false);
  if (bool_attribute(call.node, "transpose_b", false)) {
    run_stack(call, 1, true, 0, ta);
  } else {
    run_stack(call, 0, !ta, 1, false);
  }
}

}  // namespace

std::vector<OpDef> matmul_ops() {
  const std::vector<std::string_view> attributes = {"transpose_a", "transpose_b"};
  return {
      {.name = "matmul",
       .help =
           "C = op(A) op(B); A (...,M,K), B (...,K,N), C (...,M,N); transpose_a: A is (...,K,M), "
           "transpose_b: B is (...,N,K)",
       .source = "torch.matmul, bmm; CUDA autocast: lower_precision_fp",
       .cast_class = CastClass::kLowPrecision,
       .min_inputs = 2,
       .max_inputs = 2,
       .has_gemm_accumulator = true,
       .attributes = attributes,
       .infer = infer_matmul,
       .vjp = matmul_vjp,
       .run = run_matmul},
      {.name = "matmul_backward_a",
       .help = "dA = dC op(B)^T, transposed where A was; operands B, dC; sums over N",
       .source = "chain rule of matmul",
       .cast_class = CastClass::kLowPrecision,
       .min_inputs = 2,
       .max_inputs = 2,
       .has_gemm_accumulator = true,
       .attributes = attributes,
       .infer = infer_backward_a,
       .run = run_backward_a},
      {.name = "matmul_backward_b",
       .help = "dB = op(A)^T dC, transposed where B was; operands A, dC; sums over M",
       .source = "chain rule of matmul",
       .cast_class = CastClass::kLowPrecision,
       .min_inputs = 2,
       .max_inputs = 2,
       .has_gemm_accumulator = true,
       .attributes = attributes,
       .infer = infer_backward_b,
       .run = run_backward_b},
  };
}

}  // namespace lockstep
