// The kernel calls of lstm and gru: passes operands and outputs as the arrays of
// emulation/kernels/args/recurrent_args.h.
#include "src/graph/ops/inner_op.h"
#include "src/graph/ops/recurrent_layout.h"

namespace lockstep {
namespace {

RecurrentLayout layout_of(const OpCall& call) {
  std::vector<TensorType> types;
  for (const Tensor* tensor : call.inputs) {
    const bool is_int = tensor->container() == Container::kI32;
    types.push_back({tensor->shape(), is_int ? ElementType::kInt : ElementType::kFloat});
  }
  return recurrent_layout(call.node, types);
}

// The arguments that forward and backward share.
template <typename T, typename Args>
void set_operands(const OpCall& call, const RecurrentLayout& l, Args& args) {
  args.extents = l;
  args.math = inner_math<T>(call, 0, l.first_weight());
  if (!call.inner_formats.empty()) {
    args.cells = RecurrentCells::kTorchCpu;
    args.formats = {call.inner_formats[0], call.inner_formats[1], call.inner_formats[2]};
    args.math.rounding.format = args.formats.h;
  }
  args.x = input<T>(call, 0), args.h0 = input<T>(call, 1);
  if (l.is_lstm) args.c0 = input<T>(call, 2);
  for (size_t k = 0; k < l.weights(); ++k) {
    args.weights.push_back(input<T>(call, l.first_weight() + k));
  }
}

template <typename T>
void forward(const OpCall& call, const RecurrentLayout& l) {
  RecurrentForward<T> args;
  set_operands<T>(call, l, args);
  const auto saving = [&](size_t k) { return output<T>(call, l.first_saved() + k); };
  args.y = output<T>(call, 0), args.h_n = output<T>(call, 1);
  args.gates = saving(l.gates_at()), args.hidden = saving(l.hidden_at());
  if (l.is_lstm) args.c_n = output<T>(call, 2), args.cell_states = saving(l.cells_at());
  if (l.projects) args.unprojected = saving(l.unprojected_at());
  if (l.drops()) {
    draw_output_mask(call, l.dropout, l.first_saved() + l.masks_at());
    args.masks = output<int32_t>(call, l.first_saved() + l.masks_at());
    args.layer_inputs = saving(l.inputs_at());
  }
  call.kernels.of<T>().recurrent_forward(args);
}

template <typename T>
void backward(const OpCall& call, const RecurrentLayout& l) {
  RecurrentBackward<T> args;
  set_operands<T>(call, l, args);
  const auto saved = [&](size_t k) { return input<T>(call, l.operands() + k); };
  args.gates = saved(l.gates_at()), args.hidden = saved(l.hidden_at());
  if (l.is_lstm) args.cell_states = saved(l.cells_at());
  if (l.projects) args.unprojected = saved(l.unprojected_at());
  if (l.drops()) {
    args.masks = input<int32_t>(call, l.operands() + l.masks_at());
    args.layer_inputs = saved(l.inputs_at());
  }
  size_t next = l.operands() + l.saved_count();
  const auto arriving = [&](std::string_view name) {
    return bool_attribute(call.node, name, false) ? input<T>(call, next++) : nullptr;
  };
  args.dy = arriving("has_dy");
  args.dh_n = arriving("has_dh");
  if (l.is_lstm) args.dc_n = arriving("has_dc");
  args.dx = output<T>(call, 0), args.dh0 = output<T>(call, 1);
  if (l.is_lstm) args.dc0 = output<T>(call, 2);
  for (size_t k = 0; k < l.weights(); ++k) {
    args.dweights.push_back(output<T>(call, l.first_weight() + k));
  }
  call.kernels.of<T>().recurrent_backward(args);
}

}  // namespace

void run_recurrent(const OpCall& call) {
  const RecurrentLayout layout = layout_of(call);
  dispatch(call, [&]<typename T>(T*) { forward<T>(call, layout); });
}

void run_recurrent_backward(const OpCall& call) {
  const RecurrentLayout layout = layout_of(call);
  dispatch(call, [&]<typename T>(T*) { backward<T>(call, layout); });
}

}  // namespace lockstep
