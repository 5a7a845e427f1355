// First values of parameters and buffers, drawn from counters: element n of parameter i is a pure
// function of (seed, i, n). Only + - * /, sqrt and the project's own log are used, so every machine
// agrees. A parameter without a rule of its model gets torch.nn's default, which the row of its op
// names (FirstValues). Running means are 0, running variances 1, numbers of batches 0.
#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "src/core/chunks.h"
#include "src/core/random.h"
#include "src/core/text.h"
#include "src/data/noise.h"
#include "src/graph/op.h"
#include "src/models/model.h"

namespace lockstep {
namespace {

// (O,I) -> I, (O,C,R,S) -> C R S; torch counts a transposed convolution's (I,O,R,S) the same way.
int64_t fan_in(const Shape& weight) {
  return element_count(weight) / weight[0];
}
int64_t fan_out(const Shape& weight) {
  return element_count(weight) / weight[1];
}

struct Use {
  const Node* node;
  size_t operand;
};
Use first_use(const Graph& graph, const Parameter& parameter) {
  const std::string id = "p:" + parameter.name;
  for (const Node& node : graph.nodes) {
    const auto found = std::find(node.inputs.begin(), node.inputs.end(), id);
    if (found == node.inputs.end() || node.is_backward()) continue;
    return {&node, static_cast<size_t>(found - node.inputs.begin())};
  }
  throw std::logic_error("parameter " + parameter.name + ": no op uses it");
}

Tensor filled(const Shape& shape, double value) {
  Tensor t(shape, Container::kF32);
  for (float& element : t.as<float>()) element = static_cast<float>(value);
  return t;
}

// number(n): element n.
template <typename Number>
Tensor filled_by(const Shape& shape, Number number) {
  Tensor t(shape, Container::kF32);
  float* out = t.as<float>().data();
  parallel_chunks(t.size(), kElementGrain, [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) {
      out[n] = static_cast<float>(number(static_cast<uint64_t>(n)));
    }
  });
  return t;
}

Tensor uniform(const Shape& shape, double bound, const RandomStream& random) {
  return filled_by(shape, [&](uint64_t n) { return (2 * random.uniform(n) - 1) * bound; });
}

Tensor normal(const Shape& shape, double std, const RandomStream& random) {
  return filled_by(shape, [&](uint64_t n) { return normal_number(random, n) * std; });
}

Tensor torch_default(const Graph& graph, const Parameter& parameter, const RandomStream& random) {
  const Shape& shape = parameter.type.shape;
  const auto [node, operand] = first_use(graph, parameter);
  switch (find_op(node->op).meaning.first_values) {
    case FirstValues::kNormal:
      return normal(shape, 1, random);
    case FirstValues::kHidden: {
      const double hidden = static_cast<double>(graph.type_of(node->inputs[1]).shape.back());
      return uniform(shape, 1 / std::sqrt(hidden), random);
    }
    case FirstValues::kScaleShift:
      return filled(shape, operand == 1 ? 1 : 0);
    case FirstValues::kFanIn: {
      const Shape& weight = graph.type_of(node->inputs[1]).shape;
      return uniform(shape, 1 / std::sqrt(static_cast<double>(fan_in(weight))), random);
    }
    case FirstValues::kNone:
      break;
  }
  throw std::logic_error("parameter " + parameter.name + ": its model gives no initialisation");
}

Tensor draw(const InitRule& rule, const Graph& graph, const Parameter& parameter,
            const RandomStream& random) {
  const Shape& shape = parameter.type.shape;
  switch (rule.kind) {
    case InitKind::kTorchDefault:
      return torch_default(graph, parameter, random);
    case InitKind::kConstant:
      return filled(shape, rule.value);
    case InitKind::kNormal:
      return normal(shape, rule.value, random);
    case InitKind::kUniform:
      return uniform(shape, rule.value, random);
    case InitKind::kKaimingNormal:
      return normal(shape, std::sqrt(2.0 / static_cast<double>(fan_in(shape))), random);
    case InitKind::kXavierUniform:
      return uniform(shape, std::sqrt(6.0 / static_cast<double>(fan_in(shape) + fan_out(shape))),
                     random);
  }
  throw std::logic_error("parameter " + parameter.name + ": unknown initialisation");
}

}  // namespace

std::map<std::string, Tensor> initial_state(const Model& model, const ModelSizes& sizes,
                                            const Graph& graph, uint64_t seed) {
  const std::vector<InitRule> rules =
      model.init != nullptr ? model.init(sizes) : std::vector<InitRule>{};
  std::map<std::string, Tensor> state;
  for (size_t i = 0; i < graph.parameters.size(); ++i) {
    const Parameter& parameter = graph.parameters[i];
    InitRule rule{"*", InitKind::kTorchDefault};
    for (const InitRule& candidate : rules) {
      if (glob_match(candidate.pattern, parameter.name)) rule = candidate;
    }
    const RandomStream random(seed, RandomPurpose::kInit, static_cast<uint32_t>(i));
    state.emplace(parameter.name, draw(rule, graph, parameter, random));
  }
  for (const Buffer& buffer : graph.buffers) {
    if (buffer.type.element == ElementType::kInt) {  // num_batches_tracked
      state.emplace(buffer.name, Tensor(buffer.type.shape, Container::kI32));
      continue;
    }
    state.emplace(buffer.name,
                  filled(buffer.type.shape, buffer.name.ends_with("running_var") ? 1 : 0));
  }
  return state;
}

}  // namespace lockstep
