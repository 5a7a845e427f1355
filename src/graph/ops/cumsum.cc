// cumsum: running sums along one dimension. The gradient sums from the other end.
#include "src/graph/ops/op_helpers.h"
#include "src/graph/ops/rows.h"

namespace lockstep {
namespace {

std::vector<TensorType> infer_cumsum(const Node& node, std::span<const TensorType> inputs) {
  require_floats(node, inputs);
  single_dim(node, inputs[0].shape, -1);
  return {inputs[0]};
}

void cumsum_vjp(GradientBuilder& builder, const Node& node) {
  builder.add_node(node, "cumsum_backward", {builder.output_gradient(node)}, node.attributes, {0});
}

template <bool kReversed>
void run_cumsum(const OpCall& call) {
  dispatch(call, [&]<typename T>(T*) {
    const Shape& shape = input_shape(call, 0);
    const std::vector<int64_t> dims = {single_dim(call.node, shape, -1)};
    const RowLayout layout(shape, dims);
    std::vector<T> storage;
    const T* x = layout.gather(call.kernels, input<T>(call, 0), storage);
    layout.write_rows(call.kernels, output<T>(call, 0), [&](T* y) {
      call.kernels.of<T>().running_sums(x, kReversed, y, layout.rows, layout.cols,
                                        call.reduce_accumulator);
    });
  });
}

}  // namespace

std::vector<OpDef> cumsum_ops() {
  return {
      {.name = "cumsum",
       .help = "y[i] = x[0] + ... + x[i] along `dim`, in that order",
       .source = "torch.cumsum; CUDA autocast: fp32_set_opt_dtype",
       .cast_class = CastClass::kFp32,
       .attributes = {"dim"},
       .infer = infer_cumsum,
       .vjp = cumsum_vjp,
       .run = run_cumsum<false>,
       .foreign_names = {.mxnet = "_npi_cumsum"}},
      {.name = "cumsum_backward",
       .help = "dx[i] = dy[n] + ... + dy[i] along `dim`, in that order; operand dy",
       .source = "chain rule of cumsum",
       .cast_class = CastClass::kFp32,
       .attributes = {"dim"},
       .infer = infer_cumsum,
       .run = run_cumsum<true>},
  };
}

}  // namespace lockstep
