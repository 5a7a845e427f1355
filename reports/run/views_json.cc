// See views_json.h.
#include "reports/run/views_json.h"

#include <nlohmann/json.hpp>

#include "reports/run/finding_json.h"
#include "reports/run/range_json.h"
#include "reports/words/range_text.h"
#include "reports/writers/json_text.h"

namespace lockstep {

using nlohmann::ordered_json;

namespace {

ordered_json heat_map_json(const StepMap& map) {
  ordered_json out = ordered_json::array();
  for (const StepGrid& grid : map.grids) {
    ordered_json cells = ordered_json::array();
    for (const StepCell& cell : grid.cells) {
      const auto& [first, last] = map.columns[cell.column];
      cells.push_back({{"layer", map.layers[cell.layer]},
                       {"first_step", first},
                       {"last_step", last},
                       {"share", json_number(cell.share)},
                       {"site_id", cell.site}});
    }
    out.push_back({{"measure", step_measures()[grid.measure].name},
                   {"role", to_string(grid.role)},
                   {"cells", std::move(cells)}});
  }
  return out;
}

ordered_json exponents_json(const SiteExponents& exponents) {
  return {{"first", exponents.first},
          {"counts", exponents.counts},
          {"zeros", exponents.zeros},
          {"nonfinite", exponents.nonfinite}};
}

ordered_json chain_json(const Report& report, const FaultChain& chain) {
  ordered_json links = ordered_json::array();
  for (const FaultLink& link : chain.links) {
    ordered_json one = {{"site", place_json(report.site(link.site))},
                        {"format", link.format},
                        {"largest", json_number(link.largest)},
                        {"limit", json_number(link.limit)},
                        {"nonfinite_rate", json_number(link.nonfinite_rate)},
                        {"zeroed_rate", json_number(link.zeroed_rate)}};
    if (link.exponents) one["exponents"] = exponents_json(*link.exponents);
    links.push_back(std::move(one));
  }
  return {{"step", chain.step}, {"links", std::move(links)}, {"left_out", chain.left_out}};
}

ordered_json errors_json(const std::vector<LayerError>& errors) {
  ordered_json out = ordered_json::array();
  for (const LayerError& error : errors) {
    out.push_back({{"layer", error.layer},
                   {"site_id", error.site},
                   {"accumulated", json_number(error.total)},
                   {"own", json_number(error.local)}});
  }
  return out;
}

ordered_json memory_json(const MemoryFacts& memory) {
  return {{"total_bytes", total_bytes(memory)},
          {"weights_bytes", memory.weights},
          {"master_weights_bytes", memory.master_weights},
          {"gradients_bytes", memory.gradients},
          {"optimizer_state_bytes", memory.optimizer_state},
          {"kahan_terms_bytes", memory.kahan_terms},
          {"activations_bytes", memory.activations}};
}

}  // namespace

void add_views(const Report& report, const LaneReport& lane, ordered_json& out) {
  const LaneViews& views = lane.views;
  if (views.exponents.empty()) return;
  if (!lane.info.is_reference) {
    out["heat_map"] = heat_map_json(views.map);
    out["chains"] = ordered_json::array();
    for (const FaultChain& chain : views.chains) {
      out["chains"].push_back(chain_json(report, chain));
    }
  }
  out["exponent_steps"] = views.exponent_steps;
  out["exponents"] = ordered_json::array();
  for (const SiteExponents& one : views.exponents) {
    ordered_json row = {{"site", place_json(report.site(one.site))}};
    row.update(exponents_json(one));
    out["exponents"].push_back(std::move(row));
  }
  if (!views.growth) return;
  out["error_growth"] = {{"step", views.growth->step},
                         {"forward", errors_json(views.growth->forward)},
                         {"backward", errors_json(views.growth->backward)}};
}

ordered_json loss_scales_json(const Report& report) {
  ordered_json out = ordered_json::array();
  for (const RangeTable& ranges : report.ranges) {
    ordered_json one = {{"format", ranges.format->name},
                        {"keep", kept_layers_sentence(ranges)},
                        {"set", loss_scale_sentence(ranges)}};
    one.update(range_object(ranges));
    out.push_back(std::move(one));
  }
  return out;
}

ordered_json costs_json(const Report& report) {
  const CostView& costs = report.costs;
  ordered_json out = {{"gpu", costs.gpu}, {"products", costs.products}};
  out["unaligned"] = ordered_json::array();
  for (const UnalignedProduct& one : costs.unaligned) {
    out["unaligned"].push_back({{"layer", one.layer}, {"op", one.op}, {"extents", one.extents}});
  }
  out["lanes"] = ordered_json::array();
  for (const LaneCost& cost : costs.lanes) {
    ordered_json one = {{"lane", report.lanes[static_cast<size_t>(cost.lane)].info.name},
                        {"relative_time", json_number(cost.relative_time)}};
    if (cost.memory) one["memory"] = memory_json(*cost.memory);
    out["lanes"].push_back(std::move(one));
  }
  return out;
}

}  // namespace lockstep
