// var_mean: variance and mean over any dimensions, in two passes.
#include "src/graph/ops/op_helpers.h"
#include "src/graph/ops/rows.h"

namespace lockstep {
namespace {

std::vector<TensorType> infer_var_mean(const Node& node, std::span<const TensorType> inputs) {
  require_floats(node, inputs);
  double_attribute(node, "correction", 1);  // its type is checked here
  const std::vector<int64_t> dims = reduced_dims(node, "dims", inputs[0].shape);
  const Shape shape = reduced_shape(inputs[0].shape, dims, bool_attribute(node, "keepdim", false));
  return {{shape}, {shape}};
}

void run_var_mean(const OpCall& call) {
  dispatch(call, [&]<typename T>(T*) {
    const Shape& shape = input_shape(call, 0);
    const RowLayout layout(shape, reduced_dims(call.node, "dims", shape));
    std::vector<T> storage;
    const T* x = layout.gather(call.kernels, input<T>(call, 0), storage);
    call.kernels.of<T>().row_variances(x, double_attribute(call.node, "correction", 1),
                                       output<T>(call, 0), output<T>(call, 1), layout.rows,
                                       layout.cols, call.reduce_accumulator);
  });
}

// Operands x, mean, then dvar and dmean if they arrive; the attributes say which do.
void var_mean_vjp(GradientBuilder& builder, const Node& node) {
  const Shape& shape = builder.graph().type_of(node.inputs[0]).shape;
  const std::string dvar = builder.output_gradient(node, 0);
  const std::string dmean = builder.output_gradient(node, 1);
  std::vector<std::string> inputs = {node.inputs[0], output_id(node, 1)};
  for (const std::string& gradient : {dvar, dmean}) {
    if (!gradient.empty()) inputs.push_back(gradient);
  }
  builder.add_node(node, "var_mean_backward", inputs,
                   {{"dims", reduced_dims(node, "dims", shape)},
                    {"correction", double_attribute(node, "correction", 1)},
                    {"has_dvar", !dvar.empty()},
                    {"has_dmean", !dmean.empty()}},
                   {0});
}

std::vector<TensorType> infer_backward(const Node& node, std::span<const TensorType> inputs) {
  require_floats(node, inputs);
  const RowLayout layout(inputs[0].shape, reduced_dims(node, "dims", inputs[0].shape));
  require(element_count(inputs[1].shape) == layout.rows, node,
          "operand 1 is " + to_string(inputs[1].shape) + ", must have " +
              std::to_string(layout.rows) + " elements, one per mean");
  const size_t gradients = size_t{bool_attribute(node, "has_dvar", true)} +
                           size_t{bool_attribute(node, "has_dmean", true)};
  require_operand_count(node, inputs, 2 + gradients, " by has_dvar and has_dmean");
  for (size_t i = 2; i < inputs.size(); ++i) {
    require_shape(node, inputs, i, inputs[1].shape, "the shape of the mean");
  }
  return {inputs[0]};
}

void run_backward(const OpCall& call) {
  dispatch(call, [&]<typename T>(T*) {
    const Shape& shape = input_shape(call, 0);
    const RowLayout layout(shape, reduced_dims(call.node, "dims", shape));
    std::vector<T> storage;
    const T* x = layout.gather(call.kernels, input<T>(call, 0), storage);
    const bool has_dvar = bool_attribute(call.node, "has_dvar", true);
    const T* dvar = has_dvar ? input<T>(call, 2) : nullptr;
    const T* dmean =
        bool_attribute(call.node, "has_dmean", true) ? input<T>(call, has_dvar ? 3 : 2) : nullptr;
    layout.write_rows(call.kernels, output<T>(call, 0), [&](T* dx) {
      call.kernels.of<T>().row_variances_backward(x, input<T>(call, 1), dvar, dmean,
                                                  double_attribute(call.node, "correction", 1), dx,
                                                  layout.rows, layout.cols);
    });
  });
}

}  // namespace

std::vector<OpDef> var_mean_ops() {
  return {
      {.name = "var_mean",
       .help = "var, mean of x over `dims` (all if absent): var = sum (x - mean)^2 / (n - "
               "correction)",
       .source = "torch.var_mean; CUDA autocast: not listed, runs in its input's type",
       .attributes = {"dims", "keepdim", "correction"},
       .infer = infer_var_mean,
       .vjp = var_mean_vjp,
       .run = run_var_mean,
       .differentiable_outputs = 2,
       .foreign_names = {.torch = "var", .mxnet = "moments"}},
      {.name = "var_mean_backward",
       .help = "dx = 2 dvar (x - mean) / (n - correction) + dmean / n; operands x, mean, dvar?, "
               "dmean?",
       .source = "chain rule of var_mean",
       .min_inputs = 3,
       .max_inputs = 4,
       .attributes = {"dims", "correction", "has_dvar", "has_dmean"},
       .infer = infer_backward,
       .run = run_backward},
  };
}

}  // namespace lockstep
