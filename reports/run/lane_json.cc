// What a lane is, how it ended, and what was measured of it.
#include "reports/run/lane_json.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "analysis/report/main_finding.h"
#include "reports/run/finding_json.h"
#include "reports/run/views_json.h"
#include "reports/words/lane_sentence.h"
#include "reports/writers/json_text.h"

namespace lockstep {

using nlohmann::ordered_json;

namespace {

std::string_view kind_of(const LaneReport& lane) {
  if (lane.info.is_reference) return "reference";
  if (lane.is_captured()) return "captured";
  if (lane.is_twin()) return "twin";
  return lane.is_candidate() ? "candidate" : "truth";
}

ordered_json numbers(const std::vector<double>& values) {
  ordered_json out = ordered_json::array();
  for (const double value : values) out.push_back(json_number(value));
  return out;
}

void add_judgement(const LaneReport& lane, ordered_json& out) {
  const LaneJudgement& j = lane.judgement;
  out["outcome"] = to_string(j.verdict);
  out["loss"] = json_number(j.tail_loss);
  out["gap"] = json_number(j.gap);
  out["batch_noise"] = json_number(j.batch_noise);
  out["chaos"] = json_number(j.chaos);
  out["chaos_bound"] = json_number(j.chaos_bound);
  out["seed_bound"] = json_number(j.seed_bound);
  out["correct_drop"] = json_number(j.correct_drop);
  out["correct_noise"] = json_number(j.correct_noise);
  out["correct_chaos_bound"] = json_number(j.correct_chaos_bound);
  out["correct_seed_bound"] = json_number(j.correct_seed_bound);
  out["answers"] = j.answers;
  out["seeds"] = j.seeds;
  out["broke_in"] = j.broke_in;
  out["seeds_to_decide"] = j.seeds_to_decide;
}

ordered_json evaluations_json(const LaneReport& lane) {
  ordered_json out = ordered_json::array();
  for (const Evaluation& e : lane.evaluations) {
    out.push_back({{"steps_done", e.steps_done},
                   {"loss", json_number(e.loss)},
                   {"accuracy", json_number(e.accuracy)},
                   {"examples", e.example_count}});
  }
  return out;
}

ordered_json scaler_json(const Report& report, const ScalerReport& scaler) {
  ordered_json out = {{"final_scale", json_number(scaler.final_scale)},
                      {"scales", numbers(scaler.scales)}};
  if (!scaler.loss.empty()) out["loss"] = scaler.loss;
  out["skips"] = ordered_json::array();
  for (const SkipEvent& skip : scaler.overflows) {
    ordered_json event = {{"step", skip.step},
                          {"scale", json_number(skip.scale)},
                          {"scale_after", json_number(skip.scale_after)}};
    if (skip.culprit_site >= 0) event["culprit"] = place_json(report.site(skip.culprit_site));
    out["skips"].push_back(std::move(event));
  }
  out["growths"] = ordered_json::array();
  for (const GrowthEvent& growth : scaler.growths) {
    out["growths"].push_back({{"step", growth.step},
                              {"scale", json_number(growth.scale)},
                              {"scale_after", json_number(growth.scale_after)}});
  }
  return out;
}

ordered_json layer_json(const Report& report, const LayerHealth& row) {
  const SiteHealth& h = row.worst;
  return {{"layer", row.layer},
          {"role", to_string(row.role)},
          {"site", place_json(report.site(row.site))},
          {"steps", h.steps},
          {"count", h.count},
          {"nonzero", h.nonzero},
          {"to_zero", h.to_zero},
          {"to_subnormal", h.to_subnormal},
          {"to_infinity", h.to_infinity},
          {"saturated", h.saturated},
          {"nan", h.nan},
          {"infinite_in_steps", h.infinite_in_steps},
          {"worst_step", h.worst_step},
          {"worst_step_rate", json_number(h.worst_step_rate)},
          {"first_nonfinite_step", h.first_nonfinite_step},
          {"measured_sites", row.measured_sites}};
}

ordered_json sums_json(const Report& report, const LaneReport& lane) {
  ordered_json out = ordered_json::array();
  for (size_t s = 0; s < lane.sums.size(); ++s) {
    const AccumulatorHealth& sum = lane.sums[s];
    if (sum.samples == 0) continue;
    ordered_json row = {{"site", place_json(report.site(static_cast<int32_t>(s)))}};
    for (const HealthColumn& column : health_columns()) {
      if (column.count != nullptr) row[column.name] = sum.*column.count;
      if (column.moment != nullptr) row[column.name] = json_number(sum.*column.moment);
    }
    out.push_back(std::move(row));
  }
  return out;
}

ordered_json updates_json(const LaneReport& lane) {
  ordered_json out = ordered_json::array();
  for (const Stagnation& update : lane.updates) {
    out.push_back(
        {{"layer", update.layer}, {"stagnant", update.stagnant}, {"count", update.count}});
  }
  return out;
}

// The captured run's loss and gradients next to the lane's.
ordered_json captured_json(const CapturedComparison& beside) {
  ordered_json out = ordered_json::object();
  if (beside.losses) {
    out["compared_losses"] = beside.losses->compared_steps;
    out["departure"] = beside.losses->departure;
  }
  out["compared_scales"] = beside.compared_steps;
  if (beside.disagreement) out["scaler_disagrees_at"] = beside.disagreement->step;
  out["gradient_norms"] = ordered_json::array();
  for (const NormComparison* norm : {&beside.first, &beside.last}) {
    if (norm->step < 0) continue;
    out["gradient_norms"].push_back({{"step", norm->step},
                                     {"captured", json_number(norm->captured)},
                                     {"lane", json_number(norm->lane)},
                                     {"furthest", norm->furthest},
                                     {"furthest_ratio", json_number(norm->furthest_ratio)}});
  }
  return out;
}

ordered_json equal_products_json(const EqualProducts& counts) {
  return {{"products", counts.products}, {"same", counts.same}};
}

ordered_json beside_model_json(const Report& report, const HardwarePair& pair) {
  ordered_json out = {{"model", report.lanes[static_cast<size_t>(pair.model_lane)].info.name},
                      {"tensors", pair.tensors},
                      {"same", pair.same},
                      {"one_chain", equal_products_json(pair.one_chain)},
                      {"in_parts", equal_products_json(pair.in_parts)},
                      {"loss_gap", pair.loss_gap},
                      {"one_broke_at", pair.one_broke_at},
                      {"first_step", pair.first_step},
                      {"follows_unmeasured", pair.follows_unmeasured}};
  out["first"] = ordered_json::array();
  for (const FirstDifference& place : pair.first) {
    ordered_json products = ordered_json::array();
    for (const DeviceProduct& p : place.products) {
      products.push_back({{"m", p.m},
                          {"n", p.n},
                          {"k", p.k},
                          {"batch", p.batch},
                          {"algorithm", p.algorithm},
                          {"most_parts", p.most_parts}});
    }
    out["first"].push_back({{"site", place_json(report.site(place.site))},
                            {"rounded", place.is_rounded},
                            {"products", std::move(products)}});
  }
  out["sites"] = ordered_json::array();
  for (const SiteGap& gap : pair.gaps) {
    out["sites"].push_back({{"site", place_json(report.site(gap.site))},
                            {"tensors", gap.tensors},
                            {"same", gap.same},
                            {"least", json_number(gap.least)},
                            {"most", json_number(gap.most)}});
  }
  return out;
}

}  // namespace

ordered_json lane_json(const Report& report, const LaneReport& lane) {
  ordered_json out = {{"name", lane.info.name},
                      {"kind", kind_of(lane)},
                      {"engine", lane.info.engine},
                      {"target", lane.info.target},
                      {"in_software", lane.info.fallbacks}};
  if (lane.device.products > 0) {
    out["device"] = {{"products", lane.device.products},
                     {"kinds", lane.device.kinds.size()},
                     {"bytes_up", lane.device.bytes_up},
                     {"bytes_down", lane.device.bytes_down},
                     {"bytes_kept", lane.device.bytes_kept}};
  }
  if (lane.beside_model) out["beside_model"] = beside_model_json(report, *lane.beside_model);
  if (has_sentence(lane)) {
    out["sentence"] = lane_sentence(report, lane);
  }
  add_judgement(lane, out);
  out["findings_seed"] = lane.findings_seed;
  out["accuracy"] = json_number(lane.accuracy);
  out["weight_distance"] = json_number(lane.weight_distance);
  out["seconds"] = json_number(lane.seconds);
  out["skipped_steps"] = lane.skips;
  out["repeated_attempts"] = lane.repeated_attempts;
  out["died_at"] = lane.info.died_at;
  out["nonfinite_loss_at"] = lane.nonfinite_loss_at;
  out["losses"] = numbers(lane.loss);
  out["evaluations"] = evaluations_json(lane);
  out["scalers"] = ordered_json::array();
  if (lane.has_scaler) {
    for (const ScalerReport& scaler : lane.scalers) {
      out["scalers"].push_back(scaler_json(report, scaler));
    }
  }
  out["findings"] = ordered_json::array();
  for (const Finding& f : lane.findings) out["findings"].push_back(finding_json(report, lane, f));
  out["layers"] = ordered_json::array();
  for (const LayerHealth& row : lane.health) out["layers"].push_back(layer_json(report, row));
  out["updates"] = updates_json(lane);
  out["sums"] = sums_json(report, lane);
  add_views(report, lane, out);
  if (lane.beside_captured) out["beside_captured"] = captured_json(*lane.beside_captured);
  return out;
}

}  // namespace lockstep
