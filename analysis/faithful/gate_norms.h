// The gates one by one, and the norms they share. For analysis/capture_gate*.cc alone.
#pragma once

#include <cmath>
#include <functional>
#include <map>
#include <string>

#include "analysis/faithful/captured_step.h"
#include "analysis/faithful/gates.h"

namespace lockstep {

// Sums over the elements of two tensors of one shape, those marked in `noise` left out.
struct Distance {
  double difference = 0, reference = 0, value = 0;  // norms: |a - b|, |b|, |a|
  double dot = 0;
  int64_t elements = 0, noise = 0;  // all, and those left out
  double one_minus_cosine() const;
};
Distance distance(const Tensor& a, const Tensor& b, const PackedBits* noise = nullptr);

template <typename Value>  // or null
const Value* find_named(const std::map<std::string, Value>& named, const std::string& name) {
  const auto found = named.find(name);
  return found == named.end() ? nullptr : &found->second;
}

// The largest of values that each have a bound of their own, in units of it.
struct Worst {
  double ratio = 0;  // at most 1: within the bound
  std::string where;
  void take(double value, double bound, const std::string& at);
};

// The values with every nonzero weight of the graph one ulp up or down, by a seeded sign.
Tensors twin_of(const Graph& graph, Tensors values, uint64_t seed = 1);

// By parameter: the largest distance of a gradient to those of kChaosTwins twins.
using GradientChaos = std::map<std::string, double>;
using StepFromValues = std::function<ComputedStep(const Tensors& values)>;
GradientChaos gradient_chaos(const Capture& capture, const CapturedVerify& verify,
                             const Tensors& gradients, const StepFromValues& run);

// What stands behind "worst": where that was, and on what floors the judgement rested.
std::string worst_text(const std::string& where, const FloorShare& floor);

GateResult gate_v1(const Capture& capture);
// Also gives V4, which looks at the buffers of the same steps.
GateResult gate_v3(const Capture& capture, GateResult& v4);
GateResult gate_v5(const Capture& capture);
GateResult gate_v6(const Capture& capture);
GateResult gate_v7(const Capture& capture);

// capture_kinks.cc. Makes the node choose as PyTorch did where it chose otherwise by rounding
// alone: call before and after every forward node. Returns how many elements it changed.
int64_t force_kinks(const Node& node, const CapturedInside& seen, Executor& executor, bool done);

}  // namespace lockstep
