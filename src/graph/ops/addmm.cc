// addmm: y = beta c + alpha (a b), on matrices or stacks of them. The sums of products go through
// the GEMM accumulator; the epilogue scales and adds in the container's precision, and the result
// is rounded once: PyTorch's kernels do (cuBLAS; oneDNN on the CPU). The gradients are those of
// matmul. PyTorch multiplies them by alpha in kernels of their own, so they are rounded before.
#include "src/graph/ops/broadcast.h"
#include "src/graph/ops/matrix_shape.h"
#include "src/graph/ops/op_helpers.h"
#include "src/graph/ops/sum_samples.h"

namespace lockstep {
namespace {

enum Operand : size_t { kA, kB, kC };

double alpha_of(const Node& node) {
  return double_attribute(node, "alpha", 1);
}
double beta_of(const Node& node) {
  return double_attribute(node, "beta", 1);
}

std::vector<TensorType> infer_addmm(const Node& node, std::span<const TensorType> inputs) {
  require_floats(node, inputs);
  alpha_of(node), beta_of(node);  // their types are checked here
  const Shape &a = inputs[kA].shape, &b = inputs[kB].shape;
  const std::string operands = "operands " + to_string(a) + " and " + to_string(b);
  require(a.size() >= 2 && a.size() == b.size() && batch_of(a) == batch_of(b), node,
          operands + " must be (...,M,K) and (...,K,N) with equal leading extents");
  require(matrix_of(a).cols == matrix_of(b).rows, node, operands + " have unequal inner extents");
  Shape shape = a;
  shape.back() = matrix_of(b).cols;
  require(
      broadcasts_to(inputs[kC].shape, shape), node,
      "operand 2 is " + to_string(inputs[kC].shape) + ", must broadcast to " + to_string(shape));
  return {{shape}};
}

void add_factor_gradient(GradientBuilder& builder, const Node& node, Operand operand) {
  if (!builder.needs_gradient(node, operand)) return;
  const int whose = operand;
  const bool scaled = alpha_of(node) != 1;
  const std::string_view op = operand == kA ? "matmul_backward_a" : "matmul_backward_b";
  const std::string product = builder.add_node(
      node, op, {node.inputs[operand == kA ? kB : kA], builder.output_gradient(node)}, {},
      {scaled ? -1 : whose});
  if (scaled) builder.add_node(node, "mul", {product}, {{"scalar", alpha_of(node)}}, {whose});
}

void addmm_vjp(GradientBuilder& builder, const Node& node) {
  const std::string dy = builder.output_gradient(node);
  add_factor_gradient(builder, node, kA);
  add_factor_gradient(builder, node, kB);
  if (!builder.needs_gradient(node, kC)) return;
  if (beta_of(node) == 1) {
    pass_broadcast_gradient(builder, node, kC, dy);
  } else {
    add_broadcast_gradient(builder, node, kC, "mul", {dy}, {{"scalar", beta_of(node)}});
  }
}

// y = a b
void run_sums(const OpCall& call) {
  dispatch(call, [&]<typename T>(T*) {
    const Matrix a = matrix_of(input_shape(call, kA)), b = matrix_of(input_shape(call, kB));
    StackedGemm<T> stack;
    GemmArgs<T>& gemm = stack.product;
    gemm.m = a.rows, gemm.n = b.cols, gemm.k = a.cols;
    gemm.a = input<T>(call, kA), gemm.lda = a.cols;
    gemm.b = input<T>(call, kB), gemm.ldb = b.cols;
    gemm.c = output<T>(call, 0), gemm.ldc = b.cols;
    gemm.accumulator = &call.gemm_accumulator, gemm.events = call.events;
    gemm.a_format = factor_format(call, kA), gemm.b_format = factor_format(call, kB);
    stack.count = element_count(batch_of(output_shape(call, 0)));
    run_products(call, stack);
  });
}

void run_addmm(const OpCall& call) {
  run_sums(call);
  if (call.sums_ready) call.sums_ready();
  dispatch(call, [&]<typename T>(T*) {
    const Kernels<T>& kernels = call.kernels.of<T>();
    const Shape& shape = output_shape(call, 0);
    const int64_t count = element_count(shape);
    T* y = output<T>(call, 0);
    if (beta_of(call.node) == 0) {  // c may be anything, NaN too
      kernels.scale(y, static_cast<T>(alpha_of(call.node)), y, count);
      return;
    }
    std::vector<T> repeated, scaled(static_cast<size_t>(count));
    const T* c = expand(call.kernels, input<T>(call, kC), input_shape(call, kC), shape, repeated);
    if (beta_of(call.node) != 1) {
      kernels.scale(c, static_cast<T>(beta_of(call.node)), scaled.data(), count);
      c = scaled.data();
    }
    if (alpha_of(call.node) == 1) {
      kernels.add(c, y, y, count);
    } else {
      kernels.binary(Binary::kAddScaled, {alpha_of(call.node)}, c, y, y, count);
    }
  });
}

std::vector<ProductShape> products_of(const Node& node, std::span<const TensorType> inputs) {
  const Shape& y = node.outputs[0].shape;
  return {{element_count(batch_of(y)), matrix_of(y).rows, matrix_of(y).cols,
           matrix_of(inputs[kA].shape).cols}};
}

}  // namespace

std::vector<OpDef> addmm_ops() {
  return {{.name = "addmm",
           .help = "y = beta c + alpha (a b), rounded once; operands a (...,M,K), b (...,K,N) with "
                   "equal leading extents, c, which broadcasts to y (...,M,N)",
           .source = "torch.addmm, baddbmm; CUDA autocast: lower_precision_fp",
           .cast_class = CastClass::kLowPrecision,
           .min_inputs = 3,
           .max_inputs = 3,
           .attributes = {"alpha", "beta"},
           .infer = infer_addmm,
           .vjp = addmm_vjp,
           .run = run_addmm,
           .foreign_names = {.torch = "addmm baddbmm addbmm"},
           .sums = {.of_products = true, .products = products_of}}};
}

}  // namespace lockstep
