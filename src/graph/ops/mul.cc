// mul: y = a b, element by element, with numpy's broadcasting, or with a number instead of b. Its
// gradients are mul nodes: da = dy b.
#include "src/graph/ops/broadcast.h"
#include "src/graph/ops/op_helpers.h"

namespace lockstep {
namespace {

void mul_vjp(GradientBuilder& builder, const Node& node) {
  const std::string dy = builder.output_gradient(node);
  if (has_scalar(node)) {
    builder.add_node(node, "mul", {dy}, node.attributes, {0});
    return;
  }
  for (size_t operand = 0; operand < 2; ++operand) {
    if (!builder.needs_gradient(node, operand)) continue;
    add_broadcast_gradient(builder, node, operand, "mul", {dy, node.inputs[1 - operand]});
  }
}

void run_mul(const OpCall& call) {
  dispatch(call, [&]<typename T>(T*) { run_binary<T>(call, call.kernels.of<T>().mul); });
}

}  // namespace

std::vector<OpDef> mul_ops() {
  return {{.name = "mul",
           .help = "y = a b, element by element; shapes broadcast as in numpy; b may be the "
                   "number `scalar`",
           .source = "torch.mul; CUDA autocast: not listed, type promotion decides",
           .min_inputs = 1,
           .max_inputs = 2,
           .attributes = {"scalar"},
           .infer = infer_binary,
           .vjp = mul_vjp,
           .run = run_mul,
           .foreign_names = {.torch = "__mul__", .mxnet = "elemwise_mul broadcast_mul"},
           .formats = {.on_cpu = read_second_number_wide},
           .elements = {.keeps_masks = true}}};
}

}  // namespace lockstep
