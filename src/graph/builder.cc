// See builder.h. Ids, parameter names and shapes follow torch.nn.
#include "src/graph/builder.h"

#include "src/core/error.h"
#include "src/graph/infer.h"
#include "src/graph/validate.h"

namespace lockstep {
namespace {

// "conv1" of "conv1.weight".
std::string layer_of_name(const std::string& name) {
  const size_t dot = name.rfind('.');
  return dot == std::string::npos ? "" : name.substr(0, dot);
}

std::string member(const std::string& layer, const char* name) {
  return layer.empty() ? name : layer + "." + name;
}

// The extent of a module's input at `dim`, which determines the shapes of the module's parameters.
int64_t extent_of(const Graph& graph, const std::string& layer, const Value& x, size_t dim,
                  size_t rank, const char* meaning) {
  const Shape& shape = graph.type_of(x).shape;
  if (shape.size() < rank) {
    throw InputError("layer '" + layer + "': its input is " + to_string(shape) + ", must be " +
                     meaning);
  }
  return shape[dim];
}

}  // namespace

GraphBuilder::GraphBuilder(std::string name) {
  graph_.name = std::move(name);
}

Value GraphBuilder::input(std::string path, TensorType type) {
  const std::string id = "in" + std::to_string(graph_.inputs.size());
  graph_.inputs.push_back({id, std::move(path), std::move(type)});
  return id;
}

Value GraphBuilder::parameter(std::string name, Shape shape) {
  graph_.parameters.push_back({name, {std::move(shape)}, true, layer_of_name(name)});
  return "p:" + name;
}

Value GraphBuilder::buffer(std::string name, Shape shape, ElementType element) {
  graph_.buffers.push_back({name, {std::move(shape), element}, layer_of_name(name)});
  return "b:" + name;
}

Value GraphBuilder::constant(std::string name, Tensor data) {
  const ElementType element =
      data.container() == Container::kI32 ? ElementType::kInt : ElementType::kFloat;
  const TensorType type{data.shape(), element};
  graph_.constants.push_back({name, type, std::make_shared<const Tensor>(std::move(data))});
  return "c:" + name;
}

Value GraphBuilder::op(std::string_view op, std::vector<Value> inputs, Attributes attributes,
                       std::string layer, std::string source_line) {
  Node node;
  node.id = "n" + std::to_string(graph_.nodes.size());
  node.op = op;
  node.inputs = std::move(inputs);
  node.attributes = std::move(attributes);
  node.layer = std::move(layer);
  node.source_line = std::move(source_line);
  std::vector<TensorType> types;
  for (const Value& value : node.inputs) types.push_back(graph_.type_of(value));
  node.outputs = infer_outputs(node, types);
  graph_.nodes.push_back(std::move(node));
  return graph_.nodes.back().id;
}

Value GraphBuilder::linear(const std::string& layer, Value x, int64_t out_features, bool bias) {
  const size_t last = graph_.type_of(x).shape.empty() ? 0 : graph_.type_of(x).shape.size() - 1;
  const int64_t in_features = extent_of(graph_, layer, x, last, 1, "(..., in_features)");
  std::vector<Value> inputs = {std::move(x)};
  inputs.push_back(parameter(member(layer, "weight"), {out_features, in_features}));
  if (bias) inputs.push_back(parameter(member(layer, "bias"), {out_features}));
  return op("linear", std::move(inputs), {}, layer);
}

Value GraphBuilder::conv2d(const std::string& layer, Value x, int64_t out_channels, int64_t kernel,
                           int64_t stride, int64_t padding, bool bias) {
  const int64_t in_channels = extent_of(graph_, layer, x, 1, 4, "(N,C,H,W)");
  std::vector<Value> inputs = {std::move(x)};
  inputs.push_back(parameter(member(layer, "weight"), {out_channels, in_channels, kernel, kernel}));
  if (bias) inputs.push_back(parameter(member(layer, "bias"), {out_channels}));
  return op("conv2d", std::move(inputs),
            {{"stride", Shape{stride, stride}},
             {"padding", Shape{padding, padding}},
             {"dilation", Shape{1, 1}}},
            layer);
}

Value GraphBuilder::batch_norm(const std::string& layer, Value x, std::optional<double> momentum,
                               double eps) {
  const int64_t channels = extent_of(graph_, layer, x, 1, 2, "(N,C,...)");
  const Value weight = parameter(member(layer, "weight"), {channels});
  const Value bias = parameter(member(layer, "bias"), {channels});
  const Value mean = buffer(member(layer, "running_mean"), {channels});
  const Value var = buffer(member(layer, "running_var"), {channels});
  std::vector<Value> inputs = {std::move(x), weight, bias, mean, var};
  Attributes attributes = {{"training", true}, {"eps", eps}};
  const std::string count = member(layer, "num_batches_tracked");
  if (momentum) {
    attributes["momentum"] = *momentum;
  } else {
    inputs.push_back(buffer(count, {}, ElementType::kInt));
    attributes["cumulative"] = true;
  }
  const Value y = op("batch_norm", std::move(inputs), std::move(attributes), layer);
  graph_.mutations.push_back({member(layer, "running_mean"), output_id(graph_.node(y), 1)});
  graph_.mutations.push_back({member(layer, "running_var"), output_id(graph_.node(y), 2)});
  if (!momentum) graph_.mutations.push_back({count, output_id(graph_.node(y), 5)});
  return y;
}

Value GraphBuilder::embedding(const std::string& layer, Value indices, int64_t count, int64_t width,
                              int64_t padding_idx) {
  const Value weight = parameter(member(layer, "weight"), {count, width});
  return op("embedding", {weight, std::move(indices)}, {{"padding_idx", padding_idx}}, layer);
}

Value GraphBuilder::layer_norm(const std::string& layer, Value x, double eps) {
  extent_of(graph_, layer, x, 0, 1, "(..., features)");
  const int64_t width = graph_.type_of(x).shape.back();
  const Value weight = parameter(member(layer, "weight"), {width});
  const Value bias = parameter(member(layer, "bias"), {width});
  return op("layer_norm", {std::move(x), weight, bias},
            {{"normalized_ndim", int64_t{1}}, {"eps", eps}}, layer);
}

Value GraphBuilder::conv_transpose2d(const std::string& layer, Value x, int64_t out_channels,
                                     int64_t kernel, int64_t stride) {
  const int64_t in_channels = extent_of(graph_, layer, x, 1, 4, "(N,C,H,W)");
  const Value weight =
      parameter(member(layer, "weight"), {in_channels, out_channels, kernel, kernel});
  const Value bias = parameter(member(layer, "bias"), {out_channels});
  return op("conv_transpose2d", {std::move(x), weight, bias}, {{"stride", Shape{stride, stride}}},
            layer);
}

Value GraphBuilder::dropout(const std::string& layer, Value x, double p) {
  if (p == 0) return x;
  return op("dropout", {std::move(x)}, {{"p", p}, {"training", true}}, layer);
}

Value GraphBuilder::relu(const std::string& layer, Value x) {
  return op("relu", {std::move(x)}, {}, layer);
}

Value GraphBuilder::max_pool2d(const std::string& layer, Value x, int64_t kernel, int64_t stride) {
  return op("max_pool2d", {std::move(x)},
            {{"kernel", Shape{kernel, kernel}},
             {"stride", Shape{stride, stride}},
             {"padding", Shape{0, 0}}},
            layer);
}

Value GraphBuilder::flatten(const std::string& layer, Value x) {
  const int64_t batch = extent_of(graph_, layer, x, 0, 1, "(N,...)");
  const int64_t features = element_count(graph_.type_of(x).shape) / batch;
  return op("reshape", {std::move(x)}, {{"shape", Shape{batch, features}}}, layer);
}

Value GraphBuilder::reshape(const std::string& layer, Value x, Shape shape) {
  return op("reshape", {std::move(x)}, {{"shape", std::move(shape)}}, layer);
}

Value GraphBuilder::permute(const std::string& layer, Value x, Shape dims) {
  return op("permute", {std::move(x)}, {{"dims", std::move(dims)}}, layer);
}

Value GraphBuilder::slice(const std::string& layer, Value x, int64_t dim, int64_t start,
                          int64_t end, int64_t step) {
  return op("slice", {std::move(x)}, {{"dim", dim}, {"start", start}, {"end", end}, {"step", step}},
            layer);
}

Value GraphBuilder::scaled(const std::string& layer, Value x, double factor) {
  return op("mul", {std::move(x)}, {{"scalar", factor}}, layer);
}

void GraphBuilder::set_loss(Value loss) {
  graph_.loss = std::move(loss);
}

void GraphBuilder::name_output(std::string name, Value value) {
  graph_.outputs[std::move(name)] = std::move(value);
}

Graph GraphBuilder::finish() {
  validate(graph_);
  return std::move(graph_);
}

}  // namespace lockstep
