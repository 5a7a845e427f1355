// embedding: rows of a table, y[..., :] = weight[indices[...], :]. The row `padding_idx` is read
// like any other but gets no gradient.
#include "src/graph/ops/movement.h"

namespace lockstep {
namespace {

// The row without a gradient, -1 for none.
int64_t padding_row(const Node& node, int64_t rows) {
  const int64_t given = int_attribute(node, "padding_idx", -1);
  require(given >= -1 && given < rows, node,
          "attribute 'padding_idx' is " + std::to_string(given) + ", must be in [0, " +
              std::to_string(rows) + "), or -1 for none");
  return given;
}

std::vector<TensorType> infer_embedding(const Node& node, std::span<const TensorType> inputs) {
  require_float(node, inputs, 0);
  require_int(node, inputs, 1);
  require_rank(node, inputs, 0, 2, "(V,C)");
  padding_row(node, inputs[0].shape[0]);
  Shape shape = inputs[1].shape;
  shape.push_back(inputs[0].shape[1]);
  return {{shape}};
}

void embedding_vjp(GradientBuilder& builder, const Node& node) {
  Attributes attributes = with_operand_shape(builder, node, "weight_shape", 0);
  attributes["own_type"] = std::string("cpu");  // EmbeddingBackwardKernel.cu adds in FP32
  builder.add_node(node, "embedding_backward", {node.inputs[1], builder.output_gradient(node)},
                   attributes, {0});
}

RowPick pick_of(const OpCall& call, const Shape& weight, size_t index_operand) {
  return {.outer = 1,
          .rows = weight[0],
          .inner = weight[1],
          .index = checked_indices(call, index_operand, weight[0]),
          .count = call.inputs[index_operand]->size(),
          .skip = padding_row(call.node, weight[0])};
}

void run_embedding(const OpCall& call) {
  const RowPick pick = pick_of(call, input_shape(call, 0), 1);
  dispatch(call, [&]<typename T>(T*) {
    call.kernels.movement<T>().pick_rows(pick, input<T>(call, 0), output<T>(call, 0));
  });
}

std::vector<TensorType> infer_backward(const Node& node, std::span<const TensorType> inputs) {
  require_int(node, inputs, 0);
  require_float(node, inputs, 1);
  const Shape weight = ints_attribute(node, "weight_shape", {});
  require(weight.size() == 2, node,
          "attribute 'weight_shape' is " + to_string(weight) + ", must have 2 dimensions (V,C)");
  padding_row(node, weight[0]);
  Shape dy = inputs[0].shape;
  dy.push_back(weight[1]);
  require_shape(node, inputs, 1, dy, "(...,C)");
  return {{weight}};
}

void run_backward(const OpCall& call) {
  const RowPick pick = pick_of(call, output_shape(call, 0), 0);
  dispatch(call, [&]<typename T>(T*) {
    call.kernels.of<T>().pick_rows_backward(pick, input<T>(call, 1), output<T>(call, 0),
                                            call.reduce_accumulator);
  });
}

}  // namespace

std::vector<OpDef> embedding_ops() {
  return {
      {.name = "embedding",
       .help =
           "y = weight[indices]; weight (V,C), indices of any shape, y (...,C); no gradient for "
           "row padding_idx (-1: none)",
       .source =
           "torch.nn.functional.embedding; CUDA autocast: not listed, runs in the weight's type",
       .min_inputs = 2,
       .max_inputs = 2,
       .attributes = {"padding_idx"},
       .infer = infer_embedding,
       .vjp = embedding_vjp,
       .run = run_embedding,
       .foreign_names = {.mxnet = "Embedding"},
       .meaning = {.first_values = FirstValues::kNormal}},
      {.name = "embedding_backward",
       .help =
           "dweight[v] = sum of dy over the positions with index v, ascending; operands indices, "
           "dy",
       .source = "chain rule of embedding",
       .min_inputs = 2,
       .max_inputs = 2,
       .attributes = {"padding_idx", "weight_shape", "own_type"},
       .infer = infer_backward,
       .run = run_backward},
  };
}

}  // namespace lockstep
