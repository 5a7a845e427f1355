// Five sites of two layers and an optimizer update, and a step in which nothing was lost.
#pragma once

#include <string>
#include <vector>

#include "analysis/findings/step_evidence.h"
#include "src/graph/site.h"

namespace lockstep::testing {

inline Site site(int32_t id, std::string layer, std::string op, Role role,
                 std::vector<int32_t> feeds) {
  Site s{};
  s.id = id;
  s.layer = std::move(layer);
  s.op = std::move(op);
  s.role = role;
  s.point = role == Role::kAccumulator ? Point::kAccumulator : Point::kOutput;
  s.feeds = std::move(feeds);
  s.node = "n" + std::to_string(id);
  s.value = s.node;
  s.scaled = role == Role::kGradActivation || role == Role::kGradWeight;
  return s;
}

// 0 fc1 activation -> 1 fc2 activation -> 2 fc2 gradient -> 3 fc1 gradient -> 4 update of
// fc1.weight
inline SiteTable chain() {
  SiteTable table{{site(0, "fc1", "linear", Role::kActivation, {}),
                   site(1, "fc2", "linear", Role::kActivation, {0}),
                   site(2, "fc2", "linear_backward_input", Role::kGradActivation, {1}),
                   site(3, "fc1", "linear_backward_weight", Role::kGradWeight, {2}),
                   site(4, "fc1", "optimizer", Role::kUpdate, {3})}};
  table.sites[4].node = "optimizer:fc1.weight";
  return table;
}
inline const std::vector<std::string>& chain_formats() {
  static const std::vector<std::string> formats(5, "fp16");
  return formats;
}

// 0 a stored value -> 1 operand of fc1 -> 2 fc1's result -> 3 fc2's result
inline SiteTable stored_chain(const std::string& value = "p:fc1.weight",
                              Role role = Role::kWeight) {
  SiteTable table{{site(0, "fc1", "storage", role, {}), site(1, "fc1", "linear", role, {0}),
                   site(2, "fc1", "linear", Role::kActivation, {1}),
                   site(3, "fc2", "tanh", Role::kActivation, {2})}};
  table.sites[0].point = Point::kStorage;
  table.sites[0].node = "storage:" + value;
  table.sites[0].value = table.sites[1].value = value;
  table.sites[1].point = Point::kOperand;
  table.sites[1].node = table.sites[2].node;
  return table;
}

// 100 elements of size 1 everywhere, equal to the reference's.
inline std::vector<SiteRecord> clean_step(size_t sites = 5) {
  SiteRecord clean;
  clean.measured = true;
  clean.stats.count = 100;
  clean.stats.abs_max = 1;
  clean.stats.sum_sq = clean.error.ref_sq = 100;
  return std::vector<SiteRecord>(sites, clean);
}

}  // namespace lockstep::testing
