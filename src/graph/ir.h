// The intermediate representation of a training step: ops on named values with static shapes.
// Built-in models and captures use the same IR and the same JSON. Knows nothing of formats:
// lowering decides the precision of each value.
//
//   value ids   in0, in1: inputs   p:NAME parameter   b:NAME buffer   c:ID constant
//               n12: node 12's first output, n12.1 its second
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "src/core/tensor.h"

namespace lockstep {

// Element types of a graph: floating values, whose format the policy decides, and integers.
enum class ElementType : uint8_t { kFloat, kInt };

struct TensorType {
  Shape shape;
  ElementType element = ElementType::kFloat;
  bool operator==(const TensorType&) const = default;
};

using Attribute = std::variant<bool, int64_t, double, std::string, std::vector<int64_t>>;
using Attributes = std::map<std::string, Attribute>;

// What a tensor is, in the terms of reports and policies.
enum class Role : uint8_t {
  kInput,
  kWeight,
  kActivation,
  kGradActivation,
  kGradWeight,
  kAccumulator,
  kMasterWeight,
  kOptimizerState,
  kUpdate,
  kBuffer,
  kLoss,
};
std::string_view to_string(Role role);  // "grad_weight"
Role find_role(std::string_view name);  // Throws: InputError with a did-you-mean

// Where the model has a forward node: under `with autocast(enabled=...)`, and with which value.
enum class AutocastRegion : uint8_t { kUnsaid, kOn, kOff };

// Limits for a graph from a file: larger than any model needs, and small enough that a product of
// an extent and an attribute does not overflow. kMostExtent also limits the magnitude of integer
// attributes, and kMostTextBytes limits names and other texts.
inline constexpr size_t kMostRank = 16, kMostTextBytes = 4096;
inline constexpr int64_t kMostExtent = std::numeric_limits<int32_t>::max();
inline constexpr double kMostElements = 1e11;  // of one tensor

struct RecordedBackward;

struct Node {
  std::string id;  // "n12"
  std::string op;
  std::vector<std::string> inputs;  // value ids
  Attributes attributes;
  std::vector<TensorType> outputs;
  std::string layer;        // module path, e.g. "layer3.0.conv2"
  std::string source_line;  // "model.py:33", "" when unknown
  std::string torch_op;     // "aten.addmm.default": the call of PyTorch it comes from, or ""
  AutocastRegion autocast = AutocastRegion::kUnsaid;
  bool no_grad = false;      // inside torch.no_grad(): no gradient flows through it
  bool stat_exempt = false;  // its result carries a mask's huge numbers, which are intended
  // Backward nodes only:
  std::string forward_node;  // id of the forward partner, "" on forward nodes
  // For every output: the forward value whose gradient it is ("" if it is not a gradient). Several
  // nodes may give addends of one gradient; an `add` node with the same gradient_of joins them.
  std::vector<std::string> gradient_of;
  int pass = 0;  // which of Graph::passes it belongs to
  // What autodiff uses for a custom_gradient node instead of a rule of its own; null for other
  // nodes.
  std::shared_ptr<const RecordedBackward> backward = nullptr;

  bool is_backward() const { return !forward_node.empty(); }
};

// The backward pass that a user wrote for a function of theirs, as nodes. It has value ids of its
// own: "dy0" is the gradient of the function's output 0, "x3" operand 3 of its node, "n5.1" output
// 1 of node 5 of the pass.
struct RecordedBackward {
  std::vector<Node> nodes;             // in execution order, ordinary forward ops
  std::vector<std::string> gradients;  // by operand of the function's node; "": it gets none
};

struct Parameter {
  std::string name;  // "conv1.weight"; the value id is "p:conv1.weight"
  TensorType type;
  bool requires_grad = true;
  std::string layer;        // "conv1"
  std::string format = {};  // "bf16": how the model itself holds it; "": FP32
};
struct Buffer {
  std::string name;
  TensorType type;
  std::string layer;
  std::string format = {};  // "bf16": how the model itself holds it; "": FP32
};
// A tensor that never changes: a mask, position ids. Built-in models and captures fill `data` (kF32
// or kI32). A graph read from JSON alone has no data and cannot be executed.
struct Constant {
  std::string name;  // "causal_mask"; the value id is "c:causal_mask"
  TensorType type;
  std::shared_ptr<const Tensor> data;
  bool stat_exempt = false;  // its readers may have infinities: a mask to be added to scores
  std::string format = {};   // "bf16": how the model itself holds it; "": FP32
};
struct GraphInput {
  std::string id;    // "in0"
  std::string path;  // "images", "labels": its name in the data set
  TensorType type;
  std::string format = {};     // "bf16": how the model itself holds it; "": FP32
  bool requires_grad = false;  // the step graph goes back to it: the input of a part
};
// A buffer that is set to a node's output after the forward pass (running statistics).
struct Mutation {
  std::string buffer;  // name
  std::string value;   // value id
};

// The backward pass of one loss, in a step graph with several.
struct BackwardPass {
  std::string name;                              // of the loss, as in loss_names()
  std::string loss;                              // its value id
  std::string seed;                              // id of the input the pass starts from
  std::map<std::string, std::string> gradients;  // parameter name -> value id
};

struct Graph {
  std::string name;  // "lenet"
  std::vector<GraphInput> inputs;
  std::vector<Parameter> parameters;
  std::vector<Buffer> buffers;
  std::vector<Constant> constants;
  std::vector<Node> nodes;                     // in execution order
  std::string loss;                            // value id of a scalar
  std::map<std::string, std::string> outputs;  // named results, e.g. "logits" -> "n14"
  std::vector<Mutation> mutations;
  // Step graphs only (after autodiff): parameter name -> value id of its gradient; with several
  // passes, the gradient of the first pass that reaches the parameter.
  std::map<std::string, std::string> gradients;
  // Step graphs with one backward pass, as autodiff makes them (not in JSON): value id of a forward
  // value -> value id of its gradient.
  std::map<std::string, std::string> adjoints;
  // Step graphs with a backward pass per loss; empty if a single pass starts from `loss`.
  std::vector<BackwardPass> passes;

  const TensorType& type_of(std::string_view value_id) const;  // Throws: std::out_of_range
  const Node* producer_of(std::string_view value_id) const;    // null for inputs, parameters, ...
  const Node& node(std::string_view id) const;                 // Throws: std::out_of_range
  const Parameter* parameter_of(std::string_view value_id) const;
};

// "n12.1" -> {"n12", 1}; any other id -> {id, 0}.
std::pair<std::string, int> split_value_id(std::string_view value_id);
std::string output_id(const Node& node, size_t index);  // "n12" for 0, "n12.1" for 1

// The extra input of a step graph: the gradient from which the backward pass starts (loss scale).
inline constexpr std::string_view kLossSeedId = "seed";
// The same for one of several passes: "seed:NAME".
inline constexpr std::string_view kPassSeedPrefix = "seed:";
inline bool is_seed(std::string_view value_id) {
  return value_id == kLossSeedId || value_id.starts_with(kPassSeedPrefix);
}

// Whether the backward pass of this step graph computes the value or starts from it.
bool is_gradient(const Graph& step, std::string_view value_id);

// The names of the graph's outputs "loss/NAME", each a scalar: the terms of its loss.
std::vector<std::string> loss_names(const Graph& graph);

// At least 1 in a step graph.
inline size_t pass_count(const Graph& graph) {
  return graph.passes.empty() ? 1 : graph.passes.size();
}
inline std::string_view seed_id(const Graph& graph, size_t pass) {
  return graph.passes.empty() ? kLossSeedId : std::string_view(graph.passes.at(pass).seed);
}
// The gradients of one pass: parameter name -> value id.
inline const std::map<std::string, std::string>& pass_gradients(const Graph& graph, size_t pass) {
  return graph.passes.empty() ? graph.gradients : graph.passes.at(pass).gradients;
}

// Text for messages: "f32[64, 1, 28, 28]", "i32[64]".
std::string to_string(const TensorType& type);

// The layer that reports name for a node: its module path, or its op's name if it has none. For a
// backward node: that of its forward partner.
std::string layer_of(const Graph& graph, const Node& node);

}  // namespace lockstep
