// Finds gradients that vanish because the loss has no scale.
// A lane without a loss scale whose gradients underflow in a format of small range (FP16) has one
// fault, the missing scaler: the vanished gradients follow from it. A lane with a scale, with BF16
// gradients, or whose gradients have a scale per tensor (FP8 recipes) is not accused.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "analysis/findings/finding.h"
#include "analysis/findings/step_evidence.h"
#include "src/graph/site.h"
#include "src/policy/policy.h"
#include "src/train/step_record.h"

namespace lockstep {

// A static scale that fits 2^k keeps the largest gradient of the run this far below the largest
// number, and raises the largest element of the weakest vanished gradient this far above the
// smallest normal number, if both are possible.
inline constexpr int kScaleHeadroomOctaves = 2, kRaisedOctaves = 10;

class MissingScaler {
 public:
  // Both must outlive the object. `formats` by site id; empty (older files): nothing is decided.
  MissingScaler(const SiteTable& sites, const std::vector<std::string>& formats);

  // One step of the reference, whose loss has no scale.
  void add(const StepEvidence& reference);

  // Replaces findings of vanished gradients by one of kNoScaler, at the site of the first.
  // `scalers`: of the whole run.
  void fold(const Policy& policy, std::span<const ScalerRecord> scalers,
            std::vector<Finding>& findings) const;

 private:
  bool is_accused(const Policy& policy, const Finding& finding) const;
  // In the reference, which measures no sums of products: theirs is that of their result.
  double largest_at(int32_t id) const;
  double fitting_scale(const Policy& policy, const Finding& finding) const;

  const SiteTable& sites_;
  const std::vector<std::string>& formats_;
  std::vector<double> largest_;  // by site id: in the reference
};

}  // namespace lockstep
