// Norms and distances of tensors, shared by the gates, and the worst of many.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "analysis/faithful/gate_result.h"
#include "src/core/packed_bits.h"
#include "src/core/tensor.h"

namespace lockstep {

// Sums over the elements of two tensors of one shape, without those marked in `noise`.
struct Distance {
  double difference = 0, reference = 0, value = 0;  // norms: |a - b|, |b|, |a|
  double dot = 0;
  int64_t elements = 0, noise = 0;  // all elements, and those left out
  // Elements that are NaN, or the same infinity, in both are equal and count in no norm.
  double one_minus_cosine() const;
};
Distance distance(const Tensor& a, const Tensor& b, const PackedBits* noise = nullptr);

template <typename Value>  // or null
const Value* find_named(const std::map<std::string, Value>& named, const std::string& name) {
  const auto found = named.find(name);
  return found == named.end() ? nullptr : &found->second;
}

// The largest of several values, each in units of its own bound.
struct Worst {
  double ratio = 0;  // at most 1: within the bound
  std::string where;
  void take(double value, double bound, const std::string& at);
};

// The text after "worst": the place, and the floors on which the judgement rested.
std::string worst_text(const std::string& where, const FloorShare& floor);
// "gradients 0.3 of their bound (worst ...)".
std::string gradients_text(const Worst& gradients, const FloorShare& floor);

}  // namespace lockstep
