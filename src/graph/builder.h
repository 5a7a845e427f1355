// Builds graphs in C++. A model is a function that calls these methods in forward order. Names
// follow torch.nn, so the parameters of a built-in model have the names of its PyTorch twin.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "src/graph/ir.h"

namespace lockstep {

using Value = std::string;  // a value id

class GraphBuilder {
 public:
  explicit GraphBuilder(std::string name);

  Value input(std::string path, TensorType type);
  Value parameter(std::string name, Shape shape);
  Value buffer(std::string name, Shape shape, ElementType element = ElementType::kFloat);
  Value constant(std::string name, Tensor data);  // kF32 or kI32
  // Any op: infers the output types. Throws: InputError.
  Value op(std::string_view op, std::vector<Value> inputs, Attributes attributes, std::string layer,
           std::string source_line = "");

  // torch.nn modules: create their parameters under `layer` and apply the op.
  Value linear(const std::string& layer, Value x, int64_t out_features, bool bias = true);
  Value conv2d(const std::string& layer, Value x, int64_t out_channels, int64_t kernel,
               int64_t stride = 1, int64_t padding = 0, bool bias = true);
  // momentum: nullopt means torch's None, the average over all batches, with num_batches_tracked.
  Value batch_norm(const std::string& layer, Value x, std::optional<double> momentum = 0.1,
                   double eps = 1e-5);
  // With padding_idx >= 0, that row gets no gradient.
  Value embedding(const std::string& layer, Value indices, int64_t count, int64_t width,
                  int64_t padding_idx = -1);
  Value layer_norm(const std::string& layer, Value x, double eps = 1e-5);
  Value conv_transpose2d(const std::string& layer, Value x, int64_t out_channels, int64_t kernel,
                         int64_t stride);
  Value dropout(const std::string& layer, Value x, double p);
  Value relu(const std::string& layer, Value x);
  Value max_pool2d(const std::string& layer, Value x, int64_t kernel, int64_t stride);
  Value flatten(const std::string& layer, Value x);  // (N, ...) -> (N, product)
  Value reshape(const std::string& layer, Value x, Shape shape);
  Value permute(const std::string& layer, Value x, Shape dims);
  // The elements start..end-1 of a dimension.
  Value slice(const std::string& layer, Value x, int64_t dim, int64_t start, int64_t end,
              int64_t step = 1);
  Value scaled(const std::string& layer, Value x, double factor);

  const Shape& shape_of(const Value& value) const { return graph_.type_of(value).shape; }

  void set_loss(Value loss);
  void name_output(std::string name, Value value);
  // Validates and returns the graph.
  Graph finish();

  const Graph& graph() const { return graph_; }

 private:
  Graph graph_;
};

}  // namespace lockstep
