// add: y = a + alpha b with numpy's broadcasting, or with a number instead of b. Also joins the
// gradients of a value used several times.
#include "src/graph/ops/broadcast.h"
#include "src/graph/ops/op_helpers.h"

namespace lockstep {
namespace {

std::vector<TensorType> infer_add(const Node& node, std::span<const TensorType> inputs) {
  double_attribute(node, "alpha", 1);  // its type is checked here
  return infer_binary(node, inputs);
}

void add_vjp(GradientBuilder& builder, const Node& node) {
  const std::string dy = builder.output_gradient(node);
  const double alpha = double_attribute(node, "alpha", 1);
  if (builder.needs_gradient(node, 0)) pass_broadcast_gradient(builder, node, 0, dy);
  if (node.inputs.size() == 1 || !builder.needs_gradient(node, 1)) return;
  if (alpha == 1) {
    pass_broadcast_gradient(builder, node, 1, dy);
  } else {
    add_broadcast_gradient(builder, node, 1, "mul", {dy}, {{"scalar", alpha}});
  }
}

void run_add(const OpCall& call) {
  const double alpha = number_of(call, "alpha", 1);
  dispatch(call, [&]<typename T>(T*) {
    run_binary<T>(call, [&call, alpha](const T* a, const T* b, T* y, int64_t count) {
      if (alpha == 1) {
        call.kernels.of<T>().add(a, b, y, count);
      } else {
        call.kernels.of<T>().binary(Binary::kAddScaled, {alpha}, a, b, y, count);
      }
    });
  });
}

}  // namespace

std::vector<OpDef> add_ops() {
  return {{.name = "add",
           .help = "y = a + alpha b, rounded once; shapes broadcast as in numpy; b may be the "
                   "number `scalar`",
           .source = "torch.add; CUDA autocast: not listed, type promotion decides",
           .min_inputs = 1,
           .max_inputs = 2,
           .attributes = {"alpha", "scalar"},
           .infer = infer_add,
           .vjp = add_vjp,
           .run = run_add,
           .foreign_names = {.torch = "__add__", .mxnet = "elemwise_add broadcast_add"},
           .formats = {.on_cpu = read_numbers_rounded},
           .elements = {.keeps_masks = true},
           .meaning = {.is_sum = true}}};
}

}  // namespace lockstep
