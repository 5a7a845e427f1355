// See step_evidence.h.
#include "analysis/findings/step_evidence.h"

namespace lockstep {

StepEvidence::StepEvidence(std::span<const SiteRecord> sites) {
  sites_.reserve(sites.size());
  for (const SiteRecord& site : sites) sites_.push_back(&site);
}

StoredEvidence::StoredEvidence(const SiteTable& sites) {
  for (const Site& site : sites.sites) {
    if (is_storage(site)) sites_.push_back(static_cast<size_t>(site.id));
  }
  last_.resize(sites_.size());
}

void StoredEvidence::complete(StepEvidence& step) {
  for (size_t i = 0; i < sites_.size(); ++i) {
    const size_t site = sites_[i];
    if (step[site].stats.count > 0) {
      last_[i] = step[site];
    } else {
      step.replace(site, last_[i]);
    }
  }
}

}  // namespace lockstep
