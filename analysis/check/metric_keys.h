// The names of a baseline's numbers, each its own: "fp32/to_zero/conv1 conv2d weight operand
// (bias)". `baseline approve --keys` takes globs over them.
#pragma once

#include <string>
#include <vector>

#include "analysis/check/baseline.h"

namespace lockstep {

// SiteFacts::label(), made unique: with the parameter's name where a layer's parameters share it
// ("(bias)"), else with the number of the operand or output, else with "(2 of 3)" in the order of
// execution.
std::vector<std::string> unique_labels(const RunFacts& run);

// Requires: the baseline outlives it.
class MetricKeys {
 public:
  explicit MetricKeys(const Baseline& baseline);
  std::string of(size_t lane, MetricId metric, size_t subject) const;

 private:
  const RunFacts& run_;
  std::vector<std::string> labels_;  // by site
};

}  // namespace lockstep
