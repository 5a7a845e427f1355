// Estimates how much a rounding changes the loss.
// To first order: the sum over a tensor of (after - before) * d loss / d value, both in FP32. The
// derivative is the reference's, of the same step: the lane's own may have vanished. Values that
// left the format's range (they became zero or were set to the largest number) are added up apart
// from those that only lost digits. A value that was scaled for its rounding (FP8 recipes) counts
// with the scale divided out. Not weighed: infinities, roundings inside sums, into storage, of
// backward values, and of operands whose own derivative the step graph does not compute (inputs).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "emulation/format/format.h"
#include "src/graph/ir.h"
#include "src/graph/site.h"

namespace lockstep {

// Units: of the loss, unscaled. Summed over the micro-batches of a step, the mean over workers.
struct LossEffect {
  double rounding = 0, range = 0;
  void merge(const LossEffect& other) {
    rounding += other.rounding;
    range += other.range;
  }
};

// The errors of one rounding, until the derivative is known.
struct RoundingErrors {
  std::vector<float> error;      // after / scale - before; 0 where either is not finite
  std::vector<bool> left_range;  // by element
};
// `after`: round(before * scale).
RoundingErrors rounding_errors(std::span<const float> before, std::span<const float> after,
                               const Format& format, float scale = 1);

// Requires: of one size.
LossEffect loss_effect(const RoundingErrors& errors, std::span<const float> derivative);

// Where the derivative of every forward site's value is found.
class Adjoints {
 public:
  // `graph`: a step graph with its `adjoints`; without them no site has one.
  Adjoints(const Graph& graph, const SiteTable& sites);
  // The value id of the derivative at a site, "": none.
  const std::string& of_site(int32_t site) const { return of_site_[static_cast<size_t>(site)]; }
  // The sites whose derivatives this node computes.
  const std::vector<int32_t>& after_node(size_t node) const { return after_node_[node]; }

 private:
  std::vector<std::string> of_site_;
  std::vector<std::vector<int32_t>> after_node_;
};

}  // namespace lockstep
