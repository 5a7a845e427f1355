// matmul: C = op(A) op(B) on matrices or stacks of them; op optionally transposes the last two
// dimensions. Leading (batch) dimensions broadcast as in numpy. The gradient of a repeated operand
// is summed over the repetitions: inside the product if one matrix B is used with a stack of A
// (torch.matmul folds the stack into rows), otherwise afterwards, by sum_to.
#include "src/graph/composed_ops.h"
#include "src/graph/ops/broadcast.h"
#include "src/graph/ops/matrix_shape.h"
#include "src/graph/ops/op_helpers.h"
#include "src/graph/ops/sum_samples.h"

namespace lockstep {
namespace {

// batch dimensions, then (rows, cols).
Shape stack_shape(Shape batch, int64_t rows, int64_t cols) {
  batch.insert(batch.end(), {rows, cols});
  return batch;
}

void require_stacks(const Node& node, std::span<const TensorType> inputs) {
  require_floats(node, inputs);
  for (size_t i = 0; i < 2; ++i) {
    require(inputs[i].shape.size() >= 2, node,
            "operand " + std::to_string(i) + " is " + to_string(inputs[i].shape) +
                ", must have at least 2 dimensions");
  }
}
Shape common_batch(const Node& node, std::span<const TensorType> inputs) {
  return broadcast_shape(node, batch_of(inputs[0].shape), batch_of(inputs[1].shape));
}

std::vector<TensorType> infer_matmul(const Node& node, std::span<const TensorType> inputs) {
  require_stacks(node, inputs);
  const ComposedOp* kernel = find_composed_op(string_attribute(node, "of", ""));
  require(!node.attributes.contains("of") || (kernel != nullptr && kernel->is_product), node,
          "attribute 'of' must be a product with a cast class of its own (mv, dot)");
  const bool ta = bool_attribute(node, "transpose_a", false);
  const bool tb = bool_attribute(node, "transpose_b", false);
  const Matrix a = matrix_of(inputs[0].shape), b = matrix_of(inputs[1].shape);
  const int64_t m = ta ? a.cols : a.rows, k = ta ? a.rows : a.cols;
  const int64_t n = tb ? b.rows : b.cols, k_of_b = tb ? b.cols : b.rows;
  require(k == k_of_b, node,
          "inner extents are " + std::to_string(k) + " and " + std::to_string(k_of_b) +
              ", must be equal (operands " + to_string(inputs[0].shape) + " and " +
              to_string(inputs[1].shape) + ")");
  return {{stack_shape(common_batch(node, inputs), m, n)}};
}

// One matrix B for an untransposed stack of A: dB is one product over all rows of the stack.
bool folds(const Node& node, const Shape& a, const Shape& b) {
  return a.size() > 2 && b.size() == 2 && !bool_attribute(node, "transpose_a", false);
}

void matmul_vjp(GradientBuilder& builder, const Node& node) {
  const std::string dc = builder.output_gradient(node);
  for (size_t operand = 0; operand < 2; ++operand) {
    if (!builder.needs_gradient(node, operand)) continue;
    const Shape shape = builder.graph().type_of(node.inputs[operand]).shape;
    const Shape other = builder.graph().type_of(node.inputs[1 - operand]).shape;
    Attributes attributes = node.attributes;
    attributes.erase("of");
    const bool fold = operand == 1 && folds(node, other, shape);
    if (fold) attributes["fold"] = true;
    const bool whole = fold || batch_of(shape) == batch_of(node.outputs[0].shape);
    const std::string gradient =
        builder.add_node(node, operand == 0 ? "matmul_backward_a" : "matmul_backward_b",
                         {node.inputs[1 - operand], dc}, std::move(attributes),
                         {whole ? static_cast<int>(operand) : -1});
    if (!whole) reduce_gradient(builder, node, operand, gradient);
  }
}

// out = op(left) op(right), matrix by matrix; operands are indices of the call's inputs.
void run_stack(const OpCall& call, size_t left, bool transpose_left, size_t right,
               bool transpose_right) {
  dispatch(call, [&]<typename T>(T*) {
    const Shape& c = output_shape(call, 0);
    StackedGemm<T> stack;
    GemmArgs<T>& gemm = stack.product;
    const Matrix a = matrix_of(input_shape(call, left)), b = matrix_of(input_shape(call, right));
    gemm.transpose_a = transpose_left, gemm.transpose_b = transpose_right;
    gemm.m = matrix_of(c).rows, gemm.n = matrix_of(c).cols;
    gemm.k = transpose_left ? a.rows : a.cols;
    gemm.a = input<T>(call, left), gemm.lda = a.cols;
    gemm.b = input<T>(call, right), gemm.ldb = b.cols;
    gemm.c = output<T>(call, 0), gemm.ldc = gemm.n;
    gemm.accumulator = &call.gemm_accumulator;
    gemm.a_format = factor_format(call, left), gemm.b_format = factor_format(call, right);
    gemm.events = call.events;
    stack.a_matrices = repeated_matrices(batch_of(input_shape(call, left)), batch_of(c));
    stack.b_matrices = repeated_matrices(batch_of(input_shape(call, right)), batch_of(c));
    stack.count = element_count(batch_of(c));
    if (stack.count == 1) return run_output_product(call, stack.one(0));
    run_products(call, stack);
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
  const Matrix b = matrix_of(inputs[0].shape), dc = matrix_of(inputs[1].shape);
  const int64_t m = dc.rows, n = tb ? b.rows : b.cols, k = tb ? b.cols : b.rows;
  require(dc.cols == n, node,
          "operand 1 is " + to_string(inputs[1].shape) + ", its last extent must be " +
              std::to_string(n));
  return {{stack_shape(common_batch(node, inputs), ta ? k : m, ta ? m : k)}};
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
  const Matrix a = matrix_of(inputs[0].shape), dc = matrix_of(inputs[1].shape);
  const int64_t m = ta ? a.cols : a.rows, k = ta ? a.rows : a.cols, n = dc.cols;
  require(dc.rows == m, node,
          "operand 1 is " + to_string(inputs[1].shape) + ", its last extent but one must be " +
              std::to_string(m));
  const Shape batch = bool_attribute(node, "fold", false) ? Shape{} : common_batch(node, inputs);
  return {{stack_shape(batch, tb ? n : k, tb ? k : n)}};
}

// fold: A (...,M,K) and dC (...,M,N) are each read as one matrix of all their rows.
void run_folded_b(const OpCall& call) {
  const bool tb = bool_attribute(call.node, "transpose_b", false);
  dispatch(call, [&]<typename T>(T*) {
    const Matrix c = matrix_of(output_shape(call, 0));
    const size_t left = tb ? 1 : 0, right = tb ? 0 : 1;
    GemmArgs<T> gemm{.transpose_a = true, .m = c.rows, .n = c.cols};
    gemm.k = call.inputs[0]->size() / matrix_of(input_shape(call, 0)).cols;
    gemm.a = input<T>(call, left), gemm.lda = c.rows;
    gemm.b = input<T>(call, right), gemm.ldb = c.cols;
    gemm.c = output<T>(call, 0), gemm.ldc = c.cols;
    gemm.accumulator = &call.gemm_accumulator, gemm.events = call.events;
    gemm.a_format = factor_format(call, left), gemm.b_format = factor_format(call, right);
    run_output_product(call, gemm);
  });
}

void run_backward_b(const OpCall& call) {
  if (bool_attribute(call.node, "fold", false)) return run_folded_b(call);
  const bool ta = bool_attribute(call.node, "transpose_a", false);
  if (bool_attribute(call.node, "transpose_b", false)) {
    run_stack(call, 1, true, 0, ta);
  } else {
    run_stack(call, 0, !ta, 1, false);
  }
}

// `count` matrices C (m,n), summed over `k`.
std::vector<ProductShape> products_of(const Node& node, int64_t k) {
  const Shape& c = node.outputs[0].shape;
  return {{element_count(batch_of(c)), matrix_of(c).rows, matrix_of(c).cols, k}};
}
std::vector<ProductShape> matmul_products(const Node& node, std::span<const TensorType> inputs) {
  const Matrix a = matrix_of(inputs[0].shape);
  return products_of(node, bool_attribute(node, "transpose_a", false) ? a.rows : a.cols);
}
std::vector<ProductShape> backward_a_products(const Node& node,
                                              std::span<const TensorType> inputs) {
  return products_of(node, matrix_of(inputs[1].shape).cols);
}
std::vector<ProductShape> backward_b_products(const Node& node,
                                              std::span<const TensorType> inputs) {
  const Shape& dc = inputs[1].shape;
  const bool fold = bool_attribute(node, "fold", false);
  return products_of(node, matrix_of(dc).rows * (fold ? element_count(batch_of(dc)) : 1));
}

}  // namespace

std::vector<OpDef> matmul_ops() {
  const std::vector<std::string_view> attributes = {"transpose_a", "transpose_b"};
  return {
      {.name = "matmul",
       .help = "C = op(A) op(B); A (...,M,K), B (...,K,N), C (...,M,N), leading extents broadcast; "
               "transpose_a: A is (...,K,M), transpose_b: B is (...,N,K); of: mv or dot, PyTorch's "
               "kernel with a class of its own",
       .source = "torch.matmul, bmm; CUDA autocast: lower_precision_fp",
       .cast_class = CastClass::kLowPrecision,
       .min_inputs = 2,
       .max_inputs = 2,
       .attributes = {"transpose_a", "transpose_b", "of"},
       .infer = infer_matmul,
       .vjp = matmul_vjp,
       .run = run_matmul,
       .foreign_names = {.torch = "mm bmm __matmul__", .mxnet = "dot batch_dot"},
       .sums = {.of_products = true, .products = matmul_products},
       .formats = {.class_attribute = "of"}},
      {.name = "matmul_backward_a",
       .help = "dA = dC op(B)^T, transposed if A was; operands B, dC; sums over N",
       .source = "chain rule of matmul",
       .cast_class = CastClass::kLowPrecision,
       .min_inputs = 2,
       .max_inputs = 2,
       .attributes = attributes,
       .infer = infer_backward_a,
       .run = run_backward_a,
       .sums = {.of_products = true, .products = backward_a_products}},
      {.name = "matmul_backward_b",
       .help = "dB = op(A)^T dC, transposed if B was; operands A, dC; sums over M; "
               "fold: over the whole stack's rows, dB is one matrix",
       .source = "chain rule of matmul",
       .cast_class = CastClass::kLowPrecision,
       .min_inputs = 2,
       .max_inputs = 2,
       .attributes = {"transpose_a", "transpose_b", "fold"},
       .infer = infer_backward_b,
       .run = run_backward_b,
       .sums = {.of_products = true, .products = backward_b_products}},
  };
}

}  // namespace lockstep
