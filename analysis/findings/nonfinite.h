// Finds where infinities and NaN came from.
// A site is an origin in a step if it saw a non-finite value, the reference did not see one there
// in the same step, and all sites feeding it were finite. An infinity that disappears again is no
// origin (intended_infinities.h). Storage sites are measured when a value is stored: StoredEvidence
// fills in the later steps, in which a site counts as long as a site that reads it shows the same.
#pragma once

#include <vector>

#include "analysis/findings/finding.h"
#include "analysis/findings/intended_infinities.h"
#include "analysis/findings/step_evidence.h"
#include "src/graph/site.h"

namespace lockstep {

class NonfiniteOrigins {
 public:
  // `formats` by site id, may be empty. All must outlive the object.
  // `synced`: the lane begins every step with the reference's weights.
  NonfiniteOrigins(int lane, const SiteTable& sites, const std::vector<std::string>& formats,
                   bool synced = false);

  // Requires: steps in ascending order. Once infinities or NaN are left in buffers, weights or
  // optimizer state, later steps show only consequences: of these, known origins are counted.
  void add(int64_t step, bool skipped, const StepEvidence& lane, const StepEvidence& reference);

  // Forward origins of all steps, backward ones of steps that were not skipped or divide by a lost
  // number; by first step, then in execution order. One for each node, and one for all optimizer
  // updates.
  std::vector<Finding> findings() const;
  // How often each site was the first origin of a skipped step, backward pass only: by site id.
  const std::vector<int64_t>& skips_by_site() const { return skips_by_site_; }

 private:
  // The operand at a pole of the op that the reference's is not at, or the optimizer state with the
  // most zeros that the reference does not have; -1: none.
  int32_t vanished_operand(const Site& site, const StepEvidence& lane,
                           const StepEvidence& reference) const;
  // The site, of storage or in the graph, where most of the zeros at `site` appear first.
  int32_t stored_cause(int32_t site, const StepEvidence& lane, const StepEvidence& reference) const;
  // The finite operand for which the op has no result, see OpMeaning::outside; -1: none.
  int32_t operand_outside(const Site& site, const StepEvidence& lane) const;
  // The nearest site before this one whose own rounding changed values; -1: none.
  int32_t rounding_before(int32_t site, const StepEvidence& lane) const;
  // Whether the output's op reads a buffer, as one that renews it does; statistics that a layer
  // norm saves for its backward pass are no buffers of the model.
  bool renews_buffer(const Site& output) const;
  double pole_of(const Site& site) const;
  bool is_sum(const Site& site) const;
  // The operand in whose format the op rounds gradients inside, where they overflow although all
  // operands are finite; -1: the op does not.
  int32_t rounded_inside_as(const Site& site) const;
  Finding describe(int64_t step, const Site& site, const StepEvidence& lane,
                   const StepEvidence& reference) const;
  std::vector<int32_t> consequences_of(size_t origin, const std::vector<bool>& bad) const;

  int lane_;
  const SiteTable& sites_;
  const std::vector<std::string>& formats_;
  bool synced_;
  IntendedInfinities intended_;
  std::vector<Finding> findings_;
  std::vector<int64_t> skips_by_site_;
  bool poisoned_ = false;
};

// A result's zeros come from an operand that has at least this share as many.
inline constexpr double kMadeZeros = 0.5;

// Part of the backward pass: its values are multiplied by the loss scale. Optimizer sites are in
// neither pass.
inline bool is_backward(const Site& site) {
  return site.scaled;
}

}  // namespace lockstep
