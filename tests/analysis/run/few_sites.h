// Five sites of two layers, and a step in which nothing was lost.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "src/execute/site_record.h"
#include "src/graph/site.h"

namespace lockstep::testing {

inline Site site(int32_t id, std::string layer, Role role, std::vector<int32_t> feeds) {
  Site s{};
  s.id = id;
  s.layer = std::move(layer);
  s.op = "linear";
  s.role = role;
  s.point = role == Role::kAccumulator ? Point::kAccumulator : Point::kOutput;
  s.feeds = std::move(feeds);
  return s;
}

// fc1 activation -> fc2 activation -> fc2 gradient -> fc1 gradient (two sites)
inline SiteTable table() {
  return {{site(0, "fc1", Role::kActivation, {}), site(1, "fc2", Role::kActivation, {0}),
           site(2, "fc2", Role::kGradActivation, {1}), site(3, "fc1", Role::kGradWeight, {2}),
           site(4, "fc1", Role::kGradWeight, {3})}};
}

inline std::vector<SiteRecord> clean_step() {
  SiteRecord clean;
  clean.measured = true;
  clean.stats.count = 100;
  clean.stats.abs_max = 1;
  return std::vector<SiteRecord>(5, clean);
}

}  // namespace lockstep::testing
