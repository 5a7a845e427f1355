// A graph executor for tests: walks the nodes and calls every op's kernel in double, with one exact
// FP64 chain as the accumulator. No formats, no rounding, no policy.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "emulation/kernels/kernel_set.h"
#include "emulation/kernels/scalar/kernels.h"
#include "src/core/random.h"
#include "src/graph/autodiff.h"
#include "src/graph/ir.h"
#include "src/graph/op.h"
#include "src/graph/validate.h"

namespace lockstep::testing {

using Values = std::map<std::string, Tensor>;  // value id -> kF64 or kI32 tensor

// Every value of the graph. Requires: all inputs, parameters and buffers in `given`.
inline Values run_graph(const Graph& graph, Values given,
                        const KernelSet& kernels = scalar_kernels()) {
  const Accumulator& accumulator = find_accumulator("fp64_fused");
  for (const Node& node : graph.nodes) {
    std::vector<Tensor> made;
    for (const TensorType& type : node.outputs) {
      made.emplace_back(type.shape,
                        type.element == ElementType::kInt ? Container::kI32 : Container::kF64);
    }
    std::vector<const Tensor*> inputs;
    for (const std::string& value : node.inputs) inputs.push_back(&given.at(value));
    std::vector<Tensor*> outputs;
    for (Tensor& tensor : made) outputs.push_back(&tensor);
    find_op(node.op).run({node, inputs, outputs, kernels, accumulator, accumulator});
    for (size_t i = 0; i < made.size(); ++i) given[output_id(node, i)] = std::move(made[i]);
  }
  return given;
}

// Distinct values in [-1, 1), at least 2^-10 apart from zero and from each other (for tensors with
// fewer than 1000 elements), so that relu and pooling have no kink within a small step.
inline Tensor distinct_values(const Shape& shape, uint32_t stream) {
  constexpr int64_t kSlots = 1024;
  const RandomStream random(/*seed=*/7, RandomPurpose::kTest, stream);
  std::vector<int64_t> slots(kSlots);
  for (int64_t i = 0; i < kSlots; ++i) slots[static_cast<size_t>(i)] = i;
  random.shuffle(slots);
  Tensor tensor(shape, Container::kF64);
  size_t n = 0;
  for (double& value : tensor.as<double>()) {
    const int64_t slot = slots[n++ % kSlots];
    value = static_cast<double>(2 * slot + 1 - kSlots) / kSlots;
  }
  return tensor;
}

// Inputs, parameters and buffers of a graph: distinct values; integers count 0, 1, 2, ... modulo
// `classes`; buffers are positive (they may be variances); the seed is 1.
inline Values make_values(const Graph& graph, int32_t classes) {
  Values values;
  uint32_t stream = 0;
  for (const GraphInput& input : graph.inputs) {
    if (input.type.element == ElementType::kInt) {
      Tensor labels(input.type.shape, Container::kI32);
      int32_t n = 0;
      for (int32_t& label : labels.as<int32_t>()) label = n++ % classes;
      values[input.id] = std::move(labels);
    } else {
      values[input.id] = distinct_values(input.type.shape, stream++);
    }
  }
  for (const Parameter& p : graph.parameters) {
    values["p:" + p.name] = distinct_values(p.type.shape, stream++);
  }
  for (const Buffer& b : graph.buffers) {
    Tensor tensor = distinct_values(b.type.shape, stream++);
    for (double& value : tensor.as<double>()) value = 1.5 + value;
    values["b:" + b.name] = std::move(tensor);
  }
  values[std::string(kLossSeedId)] = Tensor::from<double>({}, {1.0});
  return values;
}

// max over all elements of |g - central difference|, divided by 1 + max|g|.
//
//   d = (L(w + h) - L(w - h)) / 2h     error <= h^2/6 max|L'''| + u |L| / h
// With h = cbrt(u) both terms are of order u^(2/3).
inline constexpr double kUnitRoundoff = 0x1p-53;
inline const double kStep = std::cbrt(kUnitRoundoff);
// Both terms with |L'''| / 6 + |L| <= 100 (1 + max|g|), a generous bound for the tested graphs.
inline const double kGradientTolerance = 100 * kStep * kStep;

inline double gradient_error(const Graph& forward, int32_t classes = 3) {
  const Graph step = differentiate(forward);
  validate(step);
  Values given = make_values(step, classes);
  const Values computed = run_graph(step, given);
  double worst = 0;
  for (const Parameter& p : forward.parameters) {
    const auto gradient = computed.at(step.gradients.at(p.name)).as<double>();
    double largest = 0;
    for (const double g : gradient) largest = std::max(largest, std::fabs(g));
    const auto weights = given.at("p:" + p.name).as<double>();
    for (size_t i = 0; i < weights.size(); ++i) {
      const double w = weights[i];
      const auto loss_at = [&](double at) {
        weights[i] = at;
        return run_graph(forward, given).at(forward.loss).as<double>()[0];
      };
      const double above = loss_at(w + kStep), below = loss_at(w - kStep);
      weights[i] = w;
      const double error = std::fabs(gradient[i] - (above - below) / (2 * kStep));
      // A NaN must not count as small.
      if (!(error <= worst * (1 + largest))) worst = error / (1 + largest);
      if (std::isnan(worst)) return std::numeric_limits<double>::infinity();
    }
  }
  return worst;
}

}  // namespace lockstep::testing
