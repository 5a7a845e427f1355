// Which sites are a parameter's own, whatever code uses it?
#pragma once

#include "analysis/pair/run_facts.h"

namespace lockstep {

inline bool is_stored_weight(const SiteFacts& site) {
  return site.point == "storage" && site.role == "weight";
}
// Its stored value, or what the optimizer reads and writes.
inline bool is_parameter_state(const SiteFacts& site) {
  return site.op == "optimizer" || is_stored_weight(site);
}

}  // namespace lockstep
