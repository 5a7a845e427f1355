// How do the weights of a fresh network look?
// As torch.nn's reset_parameters leaves them in distribution, but drawn from counters: parameter
// i's n-th element is a pure function of (seed, i, n). Only +-*/ and sqrt, so every machine agrees.
//
//   bound = 1 / sqrt(fan_in), value = (2 u - 1) bound, u uniform in [0, 1) with 32 bits
// Source: kaiming_uniform with a = sqrt(5), torch.nn.Linear and Conv2d: sqrt(6 / (1 + a^2) /
// fan_in).
#include <cmath>
#include <stdexcept>

#include "src/core/random.h"
#include "src/train/models/model.h"

namespace lockstep {
namespace {

bool is_normalisation(const Shape& weight) {
  return weight.size() == 1;
}

// Elements of one output's weights: (O,I) -> I, (O,C,R,S) -> C R S.
int64_t fan_in(const Shape& weight) {
  return element_count(weight) / weight[0];
}

std::string_view last_component(std::string_view name) {
  const size_t dot = name.rfind('.');
  return dot == std::string_view::npos ? name : name.substr(dot + 1);
}

// The shape of the weight that decides this parameter's distribution: for a bias, its layer's.
const Shape& deciding_weight(const Graph& graph, const Parameter& parameter) {
  if (last_component(parameter.name) != "bias") return parameter.type.shape;
  for (const Parameter& other : graph.parameters) {
    if (other.layer == parameter.layer && last_component(other.name) == "weight") {
      return other.type.shape;
    }
  }
  throw std::logic_error("parameter " + parameter.name + ": its layer has no weight");
}

Tensor filled(const Shape& shape, float value) {
  Tensor t(shape, Container::kF32);
  for (float& element : t.as<float>()) element = value;
  return t;
}

Tensor uniform(const Shape& shape, double bound, const RandomStream& random) {
  Tensor t(shape, Container::kF32);
  const auto out = t.as<float>();
  for (size_t n = 0; n < out.size(); ++n) {
    out[n] = static_cast<float>((2 * random.uniform(n) - 1) * bound);
  }
  return t;
}

}  // namespace

std::map<std::string, Tensor> initial_state(const Graph& graph, uint64_t seed) {
  std::map<std::string, Tensor> state;
  for (size_t i = 0; i < graph.parameters.size(); ++i) {
    const Parameter& parameter = graph.parameters[i];
    const Shape& shape = parameter.type.shape;
    const Shape& weight = deciding_weight(graph, parameter);
    if (is_normalisation(weight)) {
      const bool is_bias = last_component(parameter.name) == "bias";
      state.emplace(parameter.name, filled(shape, is_bias ? 0.0f : 1.0f));
      continue;
    }
    const double bound = 1 / std::sqrt(static_cast<double>(fan_in(weight)));
    const RandomStream random(seed, RandomPurpose::kInit, static_cast<uint32_t>(i));
    state.emplace(parameter.name, uniform(shape, bound, random));
  }
  for (const Buffer& buffer : graph.buffers) {
    const bool is_variance = last_component(buffer.name) == "running_var";
    state.emplace(buffer.name, filled(buffer.type.shape, is_variance ? 1.0f : 0.0f));
  }
  return state;
}

}  // namespace lockstep
