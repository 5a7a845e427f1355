// What one step of one lane shows, by site id: its records, or, at storage sites that the step does
// not measure, the last ones. Knows no file.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "analysis/run/nonfinite_counts.h"
#include "src/execute/site_record.h"
#include "src/graph/site.h"

namespace lockstep {

// The records must outlive the object.
class StepEvidence {
 public:
  StepEvidence(std::span<const SiteRecord> sites);    // NOLINT(*-explicit-*): a view of them
  StepEvidence(const std::vector<SiteRecord>& sites)  // NOLINT(*-explicit-*)
      : StepEvidence(std::span(sites)) {}
  size_t size() const { return sites_.size(); }
  const SiteRecord& operator[](size_t site) const { return *sites_[site]; }
  void replace(size_t site, const SiteRecord& by) { sites_[site] = &by; }

  // A NaN or an infinity was seen entering or leaving the rounding at this site.
  bool nonfinite(size_t site) const { return nonfinite_counts(*sites_[site]).any(); }
  // The largest magnitude, also an infinite one; NaN: not measured.
  double largest(size_t site) const {
    return sites_[site]->measured ? sites_[site]->stats.abs_max
                                  : std::numeric_limits<double>::quiet_NaN();
  }
  bool all_zero(size_t site) const {
    const TensorStats& stats = sites_[site]->stats;
    return stats.count > 0 && stats.source_zero + stats.to_zero == stats.count;
  }

 private:
  std::vector<const SiteRecord*> sites_;
};

// The last measurement at each storage site of one lane: most stored values are rounded only once.
class StoredEvidence {
 public:
  explicit StoredEvidence(const SiteTable& sites);
  // Requires: steps in ascending order. Fills in storage sites that the step does not measure;
  // valid until the next step.
  void complete(StepEvidence& step);

 private:
  std::vector<size_t> sites_;
  std::vector<SiteRecord> last_;  // as sites_
};

}  // namespace lockstep
