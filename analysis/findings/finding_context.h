// A finding, and what else sentences and remedies need.
#pragma once

#include "analysis/findings/finding.h"
#include "src/graph/site.h"

namespace lockstep {

struct FindingContext {
  const Finding& finding;
  const SiteTable& sites;
  bool has_scaler = false;  // the lane multiplies its loss
  int64_t steps = 0;        // of the run that were measured
  bool all_steps = true;    // every step was measured
  bool of_reference = false;

  const Site& site() const { return sites.sites[static_cast<size_t>(finding.site)]; }
};

}  // namespace lockstep
