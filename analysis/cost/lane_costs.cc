// See lane_costs.h.
#include "analysis/cost/lane_costs.h"

#include <fmt/format.h>

#include "analysis/cost/network.h"
#include "src/capture/capture.h"
#include "src/policy/twin_lane.h"

namespace lockstep {
namespace {

std::string extents_of(const ProductFact& fact) {
  const auto extent = [&](char name) {
    return name == 'm' ? fact.shape.m : name == 'n' ? fact.shape.n : fact.shape.k;
  };
  std::string text;
  for (const char name : fact.unaligned_16bit) {
    const bool is_channels = name == 'c' || name == 'o';
    if (!text.empty()) text += ", ";
    text += is_channels ? (name == 'c' ? "input channels" : "output channels")
                        : fmt::format("{} is {}", name, extent(name));
  }
  return text;
}

}  // namespace

CostView read_costs(const RunFile& run, const Gpu& gpu) {
  const Network network = read_network(run);
  CostView view{.gpu = std::string(gpu.name), .lanes = {}, .unaligned = {}, .products = 0};
  double reference = 0;
  for (size_t l = 0; l < run.lanes().size(); ++l) {
    const LaneInfo& info = run.lanes()[l];
    if (twin_number(info.name) > 0 || info.name == kCapturedLane || info.name == kTruthLane) {
      continue;
    }
    const double seconds =
        cost_of(network, policy_of(info), info.memory.value_or(network.memory), gpu).seconds;
    if (info.is_reference) reference = seconds;
    view.lanes.push_back(
        {.lane = static_cast<int>(l), .relative_time = seconds / reference, .memory = info.memory});
  }
  for (const ProductFact& fact : product_facts(network.step)) {
    ++view.products;
    if (fact.unaligned_16bit.empty()) continue;
    view.unaligned.push_back({fact.layer, fact.op, extents_of(fact)});
  }
  return view;
}

}  // namespace lockstep
