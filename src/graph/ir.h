// What is a training step made of?
// Ops on named values with static shapes. The same IR, and the same JSON, serve built-in models and
// captures. It knows nothing of formats: which precision a value has is decided by lowering.
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

// Element types a graph speaks of: floating values (whose format the policy decides) and integers.
enum class ElementType : uint8_t { kFloat, kInt };

struct TensorType {
  Shape shape;
  ElementType element = ElementType::kFloat;
  bool operator==(const TensorType&) const = default;
};

using Attribute = std::variant<bool, int64_t, double, std::string, std::vector<int64_t>>;
using Attributes = std::map<std::string, Attribute>;

// The kind of thing a tensor is, as reports and policies speak of it.
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

// Where the model itself puts a forward node: inside or outside `with autocast(enabled=...)`.
enum class AutocastRegion : uint8_t { kUnsaid, kOn, kOff };

// What a graph from a file may ask for: so large that no model needs it, so small that products of
// an extent and an attribute stay far from overflow. Integer attributes keep kMostExtent, too, by
// magnitude; names and other texts kMostTextBytes.
inline constexpr size_t kMostRank = 16, kMostTextBytes = 4096;
inline constexpr int64_t kMostExtent = std::numeric_limits<int32_t>::max();
inline constexpr double kMostElements = 1e11;  // of one tensor

struct Node {
  std::string id;  // "n12"
  std::string op;
  std::vector<std::string> inputs;  // value ids
  Attributes attributes;
  std::vector<TensorType> outputs;
  std::string layer;        // module path, e.g. "layer3.0.conv2"
  std::string source_line;  // "model.py:33", "" when unknown
  AutocastRegion autocast = AutocastRegion::kUnsaid;
  bool no_grad = false;      // inside torch.no_grad(): no gradient flows through it
  bool stat_exempt = false;  // its result only carries a mask's huge numbers, which are meant
  // Backward nodes only:
  std::string forward_node;  // id of the forward partner, "" on forward nodes
  // For every output: the forward value it is the gradient of ("" where it is none). Several nodes
  // may give parts of one gradient; an `add` node with the same gradient_of joins them.
  std::vector<std::string> gradient_of;
  int pass = 0;  // which of Graph::passes it belongs to

  bool is_backward() const { return !forward_node.empty(); }
};

struct Parameter {
  std::string name;  // "conv1.weight"; the value id is "p:conv1.weight"
  TensorType type;
  bool requires_grad = true;
  std::string layer;  // "conv1"
};
struct Buffer {
  std::string name;
  TensorType type;
  std::string layer;
};
// A tensor that never changes: a mask, position ids. Built-in models and captures fill `data` (kF32
// or kI32); a graph read from JSON alone has none and cannot be executed.
struct Constant {
  std::string name;  // "causal_mask"; the value id is "c:causal_mask"
  TensorType type;
  std::shared_ptr<const Tensor> data;
  bool stat_exempt = false;  // infinities in what reads it are meant: a mask to be added to scores
};
struct GraphInput {
  std::string id;    // "in0"
  std::string path;  // "images", "labels": what the data set calls it
  TensorType type;
};
// A buffer that takes a node's output when the forward pass is done (running statistics).
struct Mutation {
  std::string buffer;  // name
  std::string value;   // value id
};

// One walk back from one loss, of a step graph that has several.
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
  // passes the first one's that reaches it.
  std::map<std::string, std::string> gradients;
  // Step graphs with a backward pass per loss; empty where one pass starts from `loss`.
  std::vector<BackwardPass> passes;

  const TensorType& type_of(std::string_view value_id) const;  // Throws: std::out_of_range
  const Node* producer_of(std::string_view value_id) const;    // null for inputs, parameters, ...
  const Node& node(std::string_view id) const;                 // Throws: std::out_of_range
  const Parameter* parameter_of(std::string_view value_id) const;
};

// "n12.1" -> {"n12", 1}; any other id -> {id, 0}.
std::pair<std::string, int> split_value_id(std::string_view value_id);
std::string output_id(const Node& node, size_t index);  // "n12" for 0, "n12.1" for 1

// The extra input of every step graph: the gradient the backward pass starts from (the loss scale).
inline constexpr std::string_view kLossSeedId = "seed";
// The same of one of several passes: "seed:NAME".
inline constexpr std::string_view kPassSeedPrefix = "seed:";
inline bool is_seed(std::string_view value_id) {
  return value_id == kLossSeedId || value_id.starts_with(kPassSeedPrefix);
}

// Of a step graph: whether the backward pass makes the value or starts from it.
bool is_gradient(const Graph& step, std::string_view value_id);

// The names of the graph's outputs "loss/NAME", each a scalar: the terms that its loss is made of.
std::vector<std::string> loss_names(const Graph& graph);

// At least 1, in a step graph.
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

// The layer that reports name for a node: its module path, or where there is none its op's name (a
// backward node's: its forward partner's).
std::string layer_of(const Graph& graph, const Node& node);

}  // namespace lockstep
