// One number of every site of a step, by site id.
#pragma once

#include <vector>

#include "src/train/step_record.h"

namespace lockstep::testing {

template <typename Value>
std::vector<Value> column(const LaneStep& step, Value TensorStats::*member) {
  std::vector<Value> values;
  for (const SiteRecord& site : step.sites) values.push_back(site.stats.*member);
  return values;
}
template <typename Value>
std::vector<Value> column(const LaneStep& step, Value ErrorStats::*member) {
  std::vector<Value> values;
  for (const SiteRecord& site : step.sites) values.push_back(site.error.*member);
  return values;
}
template <typename Value>
std::vector<Value> column(const LaneStep& step, Value AccumulatorHealth::*member) {
  std::vector<Value> values;
  for (const SiteRecord& site : step.sites) values.push_back(site.health.*member);
  return values;
}

}  // namespace lockstep::testing
