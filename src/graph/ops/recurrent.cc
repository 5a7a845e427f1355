// lstm and gru: complete stacks of recurrent layers, one op each, unrolled inside.
//
// The input products of all time steps are one product; each step has one recurrent product. All
// go through the gemm accumulator. A lane of low precision models a fused cell: the arithmetic from
// the sums to the new states is the container's (FP32). h and c are rounded to the op's format at
// every step, and so are the gradients of gates and states in the backward pass. An LSTM's two
// biases are first added and rounded once (as in oneDNN; cuDNN's rounding is not published). With
// proj_size, o tanh(c) is rounded before the product with W_hr and h after it. Gates saved for the
// backward pass keep the reduce accumulator's format. There is no accumulator site: the sums are
// inside the cell and are not measured. A policy with [recurrent] cells = "torch_cpu" uses another
// row of emulation/kernels/args/recurrent_rounding.h.
#include "src/graph/ops/inner_op.h"
#include "src/graph/ops/recurrent_layout.h"

namespace lockstep {
namespace {

bool is_lstm(const Node& node) {
  return node.op.starts_with("lstm");
}

std::vector<TensorType> infer_recurrent(const Node& node, std::span<const TensorType> inputs) {
  const RecurrentLayout layout = recurrent_layout(node, inputs);
  const int64_t t = layout.time, n = layout.batch, width = layout.width();
  require_operand_count(node, inputs, layout.operands(), " for its layers and directions");
  std::vector<TensorType> outputs = {
      {layout.batch_first ? Shape{n, t, width} : Shape{t, n, width}}};
  for (size_t state = 1; state <= layout.states(); ++state) outputs.push_back(inputs[state]);
  for (TensorType& type : saved_types(layout)) outputs.push_back(std::move(type));
  return outputs;
}

void recurrent_vjp(GradientBuilder& builder, const Node& node) {
  std::vector<TensorType> types;
  for (const std::string& id : node.inputs) types.push_back(builder.graph().type_of(id));
  const RecurrentLayout layout = recurrent_layout(node, types);
  std::vector<std::string> operands = node.inputs;
  for (size_t i = 0; i < layout.saved_count(); ++i) {
    operands.push_back(output_id(node, layout.first_saved() + i));
  }
  Attributes attributes = node.attributes;
  const char* const arrives[] = {"has_dy", "has_dh", "has_dc"};
  for (size_t k = 0; k <= layout.states(); ++k) {
    const std::string gradient = builder.output_gradient(node, k);
    attributes[arrives[k]] = !gradient.empty();
    if (!gradient.empty()) operands.push_back(gradient);
  }
  std::vector<int> gradient_operands;
  for (size_t i = 0; i < node.inputs.size(); ++i) gradient_operands.push_back(static_cast<int>(i));
  builder.add_node(node, is_lstm(node) ? "lstm_backward" : "gru_backward", std::move(operands),
                   std::move(attributes), std::move(gradient_operands));
}

std::vector<TensorType> infer_backward(const Node& node, std::span<const TensorType> inputs) {
  const RecurrentLayout layout = recurrent_layout(node, inputs);
  const std::vector<TensorType> saved = saved_types(layout);
  require(inputs.size() >= layout.operands() + saved.size(), node,
          "has " + std::to_string(inputs.size()) + " operands, must have at least " +
              std::to_string(layout.operands() + saved.size()));
  for (size_t i = 0; i < saved.size(); ++i) {
    require_shape(node, inputs, layout.operands() + i, saved[i].shape, "a saved value");
  }
  return {inputs.begin(), inputs.begin() + static_cast<std::ptrdiff_t>(layout.operands())};
}

}  // namespace

RecurrentLayout recurrent_layout(const Node& node, std::span<const TensorType> inputs) {
  RecurrentLayout layout{};
  layout.is_lstm = is_lstm(node);
  layout.gates = layout.is_lstm ? 4 : 3;
  layout.has_bias = bool_attribute(node, "has_bias", true);
  layout.batch_first = bool_attribute(node, "batch_first", true);
  layout.layers = int_attribute(node, "layers", 1);
  layout.directions = bool_attribute(node, "bidirectional", false) ? 2 : 1;
  require(layout.layers >= 1, node,
          "attribute 'layers' is " + std::to_string(layout.layers) + ", must be at least 1");
  const int64_t projection = int_attribute(node, "proj_size", 0);
  require(projection >= 0 && (layout.is_lstm || projection == 0), node,
          "attribute 'proj_size' is " + std::to_string(projection) + ", must be " +
              (layout.is_lstm ? "0 (none) or more" : "0"),
          layout.is_lstm ? "" : "a gru has no projection");
  layout.projects = projection > 0;
  const double dropout = active_dropout(node, "dropout");
  layout.dropout = layout.layers > 1 ? dropout : 0;
  layout.separate_bias = bool_attribute(node, "separate_bias", false);
  require(inputs.size() >= layout.operands(), node,
          "has " + std::to_string(inputs.size()) + " operands, must have " +
              std::to_string(layout.operands()) + " (x, h0" + (layout.is_lstm ? ", c0" : "") +
              " and " + std::to_string(layout.per_cell()) + " per layer and direction)");
  for (size_t i = 0; i < layout.operands(); ++i) require_float(node, inputs, i);
  const char* const meaning = layout.batch_first ? "(N,T,C)" : "(T,N,C)";
  require_rank(node, inputs, 0, 3, meaning);
  const Shape& x = inputs[0].shape;
  layout.time = x[layout.batch_first ? 1 : 0], layout.batch = x[layout.batch_first ? 0 : 1];
  layout.in = x[2];
  require(layout.time >= 1, node,
          "operand 0 is " + to_string(x) + " = " + meaning + ", must have at least one time step");
  // c0 gives the cell's width, h0 that of the output. With a projection they differ.
  const char* const of_state = "(layers * directions, N, H)";
  const char* const of_h = layout.projects ? "(layers * directions, N, proj_size)" : of_state;
  for (size_t i = 1; i <= layout.states(); ++i) {
    require_rank(node, inputs, i, 3, i == 1 ? of_h : of_state);
  }
  layout.hidden = inputs[layout.projects ? 2 : 1].shape[2];
  layout.state = layout.projects ? projection : layout.hidden;
  require(!layout.projects || projection < layout.hidden, node,
          "attribute 'proj_size' is " + std::to_string(projection) +
              ", must be below H = " + std::to_string(layout.hidden));
  const int64_t cells = layout.cells();
  require_shape(node, inputs, 1, {cells, layout.batch, layout.state}, of_h);
  if (layout.is_lstm) {
    require_shape(node, inputs, 2, {cells, layout.batch, layout.hidden}, of_state);
  }
  const int64_t rows = layout.gates * layout.hidden;
  for (int64_t cell = 0; cell < cells; ++cell) {
    const int64_t in = layout.layer_in(cell / layout.directions);
    require_shape(node, inputs, layout.weight(cell, 0), {rows, in}, "(gates * H, inputs), w_ih");
    require_shape(node, inputs, layout.weight(cell, 1), {rows, layout.state},
                  layout.projects ? "(gates * H, proj_size), w_hh" : "(gates * H, H), w_hh");
    for (size_t k = 2; k < (layout.has_bias ? 4 : 2); ++k) {
      require_shape(node, inputs, layout.weight(cell, k), {rows}, "(gates * H), a bias");
    }
    if (!layout.projects) continue;
    require_shape(node, inputs, layout.weight(cell, layout.projection()),
                  {layout.state, layout.hidden}, "(proj_size, H), w_hr");
  }
  return layout;
}

std::vector<TensorType> saved_types(const RecurrentLayout& layout) {
  constexpr int64_t kSaved =
      4;  // per state element, see emulation/kernels/scalar/products/recurrent.h
  const Shape wide = {layout.cells(), layout.time, layout.batch, layout.hidden};
  const Shape states = {layout.cells(), layout.time, layout.batch, layout.state};
  Shape gates = wide;
  gates.back() *= kSaved;
  std::vector<TensorType> types = {{gates}};
  if (layout.is_lstm) types.push_back({wide});
  types.push_back({states});
  if (layout.projects) types.push_back({wide});
  if (layout.drops()) {
    const Shape between = {layout.layers - 1, layout.time, layout.batch, layout.width()};
    types.push_back({between, ElementType::kInt});
    types.push_back({between});
  }
  return types;
}

bool is_recurrent_factor(const Node& node, size_t operand) {
  if (operand == 0) return true;
  const size_t first = is_lstm(node) ? 3 : 2;
  const bool projects = int_attribute(node, "proj_size", 0) > 0;
  const size_t without = bool_attribute(node, "has_bias", true) ? 4 : 2;
  const size_t per_cell = without + (projects ? 1 : 0);
  const auto cells = static_cast<size_t>(int_attribute(node, "layers", 1) *
                                         (bool_attribute(node, "bidirectional", false) ? 2 : 1));
  if (operand < first || operand >= first + cells * per_cell) return false;
  const size_t k = (operand - first) % per_cell;
  return k < 2 || k >= without;
}

namespace {

const Format* wider(const Format* a, const Format* b) {
  return contains(*a, *b) ? a : b;
}

// oneDNN's kernel is on autocast's lists, so all its operands are cast. ATen's cells are not, but
// the products inside are: autocast casts their operands and not the states between them, so states
// that begin in FP32 stay FP32. Each direction of a layer casts x separately, and their gradients
// are added in x's own format.
void cpu_formats(const Node& node, NodeFormats& formats) {
  const bool lstm = is_lstm(node), projects = int_attribute(node, "proj_size", 0) > 0;
  const size_t states = lstm ? 2 : 1;
  const Format* low = formats.gradients[0];
  const Format *h = low, *c = low;
  if (!lstm || projects) {
    low = h = c = formats.low;
    formats.operands.assign(formats.operands.size(), low);
    formats.gradients = formats.operands;
    const size_t kept = states;  // the last state: c of a projected LSTM, else h
    formats.operands[kept] = nullptr;
    formats.gradients[kept] = formats.stored[kept];
    (lstm ? c : h) = wider(formats.stored[kept], low);
    const size_t per_cell = (bool_attribute(node, "has_bias", true) ? 4 : 2) + (projects ? 1 : 0);
    for (size_t w_hr = states + per_cell; projects && w_hr < formats.stored.size();
         w_hr += per_cell) {
      formats.gradients[w_hr] = formats.stored[w_hr];
    }
  }
  if (bool_attribute(node, "bidirectional", false)) formats.gradients[0] = formats.stored[0];
  // y, h_n, [c_n]; saved: gates, [cell states], hidden states, [o tanh(c)], [masks, layer inputs].
  std::vector<const Format*> outputs = {h, h};
  if (lstm) outputs.push_back(c);
  outputs.push_back(low);
  if (lstm) outputs.push_back(c);
  outputs.push_back(h);
  outputs.resize(formats.outputs.size(), low);
  formats.outputs = std::move(outputs);
  formats.inner = {low, h, c};
}

// Per cell: the input's projection of all steps, and one product per step with the hidden state.
std::vector<ProductShape> forward_products(const Node& node, std::span<const TensorType> inputs) {
  const RecurrentLayout layout = recurrent_layout(node, inputs);
  const int64_t rows = layout.gates * layout.hidden, all = layout.time * layout.batch;
  std::vector<ProductShape> products;
  for (int64_t cell = 0; cell < layout.layers * layout.directions; ++cell) {
    products.push_back({1, all, rows, layout.layer_in(cell / layout.directions)});
    products.push_back({layout.time, layout.batch, rows, layout.state});
    if (layout.projects) {
      products.push_back({layout.time, layout.batch, layout.state, layout.hidden});
    }
  }
  return products;
}
std::vector<ProductShape> backward_products(const Node& node, std::span<const TensorType> inputs) {
  const RecurrentLayout layout = recurrent_layout(node, inputs);
  const int64_t rows = layout.gates * layout.hidden, all = layout.time * layout.batch;
  std::vector<ProductShape> products;
  for (int64_t cell = 0; cell < layout.layers * layout.directions; ++cell) {
    const int64_t in = layout.layer_in(cell / layout.directions);
    products.push_back({1, all, in, rows});                               // dx
    products.push_back({layout.time, layout.batch, layout.state, rows});  // dh
    products.push_back({1, rows, in, all});                               // dw_ih
    products.push_back({1, rows, layout.state, all});                     // dw_hh
    if (!layout.projects) continue;
    products.push_back({layout.time, layout.batch, layout.hidden, layout.state});
    products.push_back({1, layout.state, layout.hidden, all});  // dw_hr
  }
  return products;
}

}  // namespace

std::vector<OpDef> recurrent_ops() {
  const std::vector<std::string_view> attributes = {"layers",    "bidirectional", "batch_first",
                                                    "dropout",   "has_bias",      "training",
                                                    "proj_size", "separate_bias"};
  std::vector<std::string_view> backward_attributes = attributes;
  backward_attributes.insert(backward_attributes.end(), {"has_dy", "has_dh", "has_dc"});
  constexpr int kMaxCells = 32, kMaxSaved = 9, kMaskBytes = 1;
  const auto make = [&](bool lstm) -> std::vector<OpDef> {
    const int states = lstm ? 2 : 1, most = 1 + states + 5 * kMaxCells;
    std::vector<int> follows(static_cast<size_t>(states) + 1, kFollowsOutput0);
    follows.push_back(kFollowsAccumulator);
    return {
        {.name = lstm ? "lstm" : "gru",
         .help =
             lstm
                 ? "stacked LSTM, gates i, f, g, o: c = f c + i g, h = o tanh(c), as a fused cell: "
                   "h and c are rounded at every step, FP32 in between; operands x "
                   "(N,T,C), h0, c0 (layers * directions,N,H), then w_ih, w_hh, b_ih, b_hh per "
                   "layer and direction, and w_hr if proj_size > 0 (h = W_hr o tanh(c)); "
                   "outputs y, "
                   "h_n, c_n, then values saved for the gradient"
                 : "stacked GRU, gates r, z, n: n = tanh(W_in x + b_in + r (W_hn h + b_hn)), h = "
                   "(h - n) z + n, as a fused cell: h is rounded at every step, FP32 in "
                   "between; operands x (N,T,C), h0 (layers * directions,N,H), then w_ih, "
                   "w_hh, b_ih, b_hh per layer and direction; outputs y, h_n, then values "
                   "saved for the gradient",
         .source = lstm ? "torch.nn.LSTM; CUDA autocast: lower_precision_fp (lstm_cell)"
                        : "torch.nn.GRU; CUDA autocast: lower_precision_fp (gru_cell)",
         .cast_class = CastClass::kLowPrecision,
         .min_inputs = 1 + states + 2,
         .max_inputs = most,
         .attributes = attributes,
         .infer = infer_recurrent,
         .vjp = recurrent_vjp,
         .run = run_recurrent,
         .differentiable_outputs = 1 + states,
         .foreign_names = lstm ? ForeignNames{.torch = "lstm_cell mkldnn_rnn_layer", .mxnet = "RNN"}
                               : ForeignNames{.torch = "gru_cell", .mxnet = "RNN"},
         .sums = {.of_products = true,
                  .operands = {0, 1 + states},
                  .is_factor = is_recurrent_factor,
                  .are_shown = false,
                  .products = forward_products},
         .formats = {.output_follows = follows, .on_cpu = cpu_formats, .integer_bytes = kMaskBytes},
         .meaning = {.draws_mask = draws_where_it_has_one, .first_values = FirstValues::kHidden}},
        {.name = lstm ? "lstm_backward" : "gru_backward",
         .help = "backpropagation through time: gradients of all operands; operands those of the "
                 "forward op, its saved values, then those of dy, dh_n and (LSTM) dc_n that exist",
         .source = "chain rule",
         .cast_class = CastClass::kLowPrecision,
         .min_inputs = 1 + states + 2 + 2,
         .max_inputs = most + kMaxSaved,
         .attributes = backward_attributes,
         .infer = infer_backward,
         .run = run_recurrent_backward,
         .sums = {.of_products = true,
                  .operands = {0, 1 + states},
                  .is_factor = is_recurrent_factor,
                  .are_shown = false,
                  .products = backward_products}},
    };
  };
  std::vector<OpDef> rows = make(/*lstm=*/true);
  for (OpDef& row : make(/*lstm=*/false)) rows.push_back(std::move(row));
  return rows;
}

}  // namespace lockstep
