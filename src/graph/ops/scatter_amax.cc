// scatter_amax: y[p with its place along dim replaced by index[p]] = the largest such src[p], 0
// where there is none. Equal ones share the gradient, as in torch's scatter_reduce.
#include <cmath>

#include "src/graph/ops/movement.h"
#include "src/graph/ops/rows.h"

namespace lockstep {
namespace {

// The place in y of every element of src, in src's order.
std::vector<int64_t> places_in(const OpCall& call, const Shape& y) {
  const Shape& src = input_shape(call, 0);
  const auto dim = static_cast<size_t>(single_dim(call.node, y, 0));
  const std::vector<int64_t> strides = dense_strides(y);
  const auto index = checked_indices(call, 1, y[dim]);
  std::vector<int64_t> found(static_cast<size_t>(call.inputs[0]->size())), at(src.size(), 0);
  for (size_t i = 0; i < found.size(); ++i) {
    for (size_t d = 0; d < src.size(); ++d) {
      found[i] += (d == dim ? static_cast<int64_t>(index[i]) : at[d]) * strides[d];
    }
    for (size_t d = src.size(); d-- > 0;) {
      if (++at[d] < src[d]) break;
      at[d] = 0;
    }
  }
  return found;
}

std::vector<TensorType> infer_scatter(const Node& node, std::span<const TensorType> inputs) {
  require_float(node, inputs, 0);
  require_int(node, inputs, 1);
  require_shape(node, inputs, 1, inputs[0].shape, "the shape of src");
  const Shape y = ints_attribute(node, "shape", {});
  const auto dim = static_cast<size_t>(single_dim(node, y, 0));
  bool fits = y.size() == inputs[0].shape.size();
  for (size_t d = 0; fits && d < y.size(); ++d) fits = d == dim || inputs[0].shape[d] <= y[d];
  require(fits, node,
          "src is " + to_string(inputs[0].shape) + ", must have the dimensions of y " +
              to_string(y) + " and no larger extent except along dimension " + std::to_string(dim));
  return {{y}};
}

void vjp(GradientBuilder& builder, const Node& node) {
  builder.add_node(
      node, "scatter_amax_backward",
      {node.inputs[0], node.inputs[1], output_id(node, 0), builder.output_gradient(node)},
      node.attributes, {0});
}

void run_scatter(const OpCall& call) {
  const std::vector<int64_t> places = places_in(call, output_shape(call, 0));
  call.outputs[0]->fill_zero();
  dispatch(call, [&]<typename T>(T*) {
    const T* src = input<T>(call, 0);
    T* y = output<T>(call, 0);
    std::vector<bool> filled(static_cast<size_t>(call.outputs[0]->size()), false);
    for (size_t i = 0; i < places.size(); ++i) {
      const auto place = static_cast<size_t>(places[i]);
      if (!filled[place] || src[i] > y[place] || std::isnan(src[i])) y[place] = src[i];
      filled[place] = true;
    }
  });
}

std::vector<TensorType> infer_backward(const Node& node, std::span<const TensorType> inputs) {
  const Shape y = infer_scatter(node, inputs.first(2))[0].shape;
  for (const size_t i : {2, 3}) {
    require_float(node, inputs, i);
    require_shape(node, inputs, i, y, "the shape of y");
  }
  return {{inputs[0].shape}};
}

void run_backward(const OpCall& call) {
  const std::vector<int64_t> places = places_in(call, input_shape(call, 2));
  dispatch(call, [&]<typename T>(T*) {
    const T *src = input<T>(call, 0), *y = input<T>(call, 2), *dy = input<T>(call, 3);
    T* dx = output<T>(call, 0);
    std::vector<T> winners(static_cast<size_t>(call.inputs[2]->size()), 0);
    for (size_t i = 0; i < places.size(); ++i) {
      const auto place = static_cast<size_t>(places[i]);
      if (src[i] == y[place]) winners[place] += 1;
    }
    for (size_t i = 0; i < places.size(); ++i) {
      const auto place = static_cast<size_t>(places[i]);
      dx[i] = src[i] == y[place] ? dy[place] / winners[place] : T(0);
    }
  });
}

}  // namespace

std::vector<OpDef> scatter_amax_ops() {
  return {
      {.name = "scatter_amax",
       .help = "y[p with index[p] along dim (default 0)] = the largest src[p], 0 where there is "
               "none; y has `shape`; operands src, index",
       .source = "torch.Tensor.scatter_reduce(amax); CUDA autocast: not listed",
       .min_inputs = 2,
       .max_inputs = 2,
       .attributes = {"dim", "shape"},
       .infer = infer_scatter,
       .vjp = vjp,
       .run = run_scatter},
      {.name = "scatter_amax_backward",
       .help = "dsrc = dy / number of equal winners where src = y, else 0; operands src, index, y, "
               "dy",
       .source = "torch's derivative of scatter_reduce",
       .min_inputs = 4,
       .max_inputs = 4,
       .attributes = {"dim", "shape"},
       .infer = infer_backward,
       .run = run_backward},
  };
}

}  // namespace lockstep
