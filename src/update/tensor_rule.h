// A step that reads a whole tensor at once: rows, columns, norms, products of matrices.
// It is composed of the update rules of the kernels (emulation/kernels/optimizer_rules.h), which
// round, store and measure, and of sums over the tensor. Knows one parameter's arrays.
#pragma once

#include <cstdint>
#include <vector>

#include "emulation/kernels/args/optimizer_args.h"
#include "emulation/kernels/kernel_set.h"
#include "emulation/stats/update_stats.h"
#include "src/update/hyper_parameters.h"

namespace lockstep {

template <typename T>
struct TensorStep {
  const KernelSet& kernels;
  const HyperNumbers& numbers;
  double lr;  // of this step
  const OptimizerArrays<T>& arrays;
  UpdateStats* stats;  // may be null

  // State k, of `count` numbers, advances by the rule from g. Returns the rule's dw added to zeros,
  // in the format of the arithmetic.
  std::vector<T> advance(const UpdateRule& rule, const T* g, int64_t count, int k) const;
  // The weight moves by -length direction, after its decay by lr_of_decay weight_decay. No state
  // changes.
  void finish(const T* direction, double length, double lr_of_decay, double weight_decay) const;
  // To nearest, to the format of the arithmetic.
  void round(T* values, int64_t count) const;
  T rounded(double x) const;
};

// The same step in both containers. Null: the optimizer works element by element.
struct TensorRule {
  void (*f32)(const TensorStep<float>&) = nullptr;
  void (*f64)(const TensorStep<double>&) = nullptr;

  explicit operator bool() const { return f32 != nullptr; }
  void run(const TensorStep<float>& step) const { f32(step); }
  void run(const TensorStep<double>& step) const { f64(step); }
};

}  // namespace lockstep
