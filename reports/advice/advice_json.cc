// The answer of `recommend` as JSON; docs/advice-json.md describes it.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "reports/advice/advice_text.h"
#include "reports/run/range_json.h"
#include "reports/writers/json_text.h"

namespace lockstep {
namespace {

using nlohmann::ordered_json;

ordered_json kept_json(const Advice& advice, const std::vector<KeptLayer>& kept, bool is_chosen) {
  ordered_json out = ordered_json::array();
  for (const KeptLayer& layer : kept) {
    out.push_back({{"layer", layer.layer},
                   {"reason", layer.reason},
                   {"measured", is_chosen && advice.without.contains(layer.layer)}});
  }
  return out;
}

ordered_json measured_json(const MeasuredSensitivity& measured) {
  return {{"loss_error", json_number(measured.loss_error)},
          {"gradient_error", json_number(measured.gradient_error)},
          {"error_to_noise", json_number(measured.error_to_noise)},
          {"gap", json_number(measured.accumulated)}};
}

ordered_json sensitivity_json(const SensitivityTable& table) {
  ordered_json json = {{"batch_noise", json_number(table.batch_noise)}};
  if (table.is_measured) {
    json["rank_correlation"] = json_number(table.of_layers.value);
    json["role_rank_correlation"] = json_number(table.of_roles.value);
    json["measured_top_third"] = table.measured_top_third;
    json["floor"] = measured_json(table.floor);
  }
  for (const GradientNoise& row : table.noise) {
    ordered_json one = {{"weight", row.weight},
                        {"layer", row.layer},
                        {"noise_share", json_number(row.share)},
                        {"basis", row.is_measured() ? "measured" : "assumed"}};
    if (!row.is_measured()) one["reason"] = row.why_assumed;
    json["weights"].push_back(one);
  }
  for (const LayerSensitivity& row : table.layers) {
    ordered_json one = {
        {"layer", row.layer}, {"format", row.format}, {"score", json_number(row.score)}};
    if (row.measured) one.update(measured_json(*row.measured));
    json["layers"].push_back(one);
  }
  for (const RoleSensitivity& row : table.roles) {
    ordered_json one = {{"layer", row.layer},
                        {"role", to_string(row.role)},
                        {"format", row.format},
                        {"score", json_number(row.score)},
                        {"effect", json_number(row.effect)},
                        {"range_effect", json_number(row.range_effect)},
                        {"gradient_error", json_number(row.gradient_error)},
                        {"error_to_noise", json_number(row.error_to_noise)},
                        {"updates_lost", json_number(row.updates_lost)},
                        {"terms", row.terms}};
    if (row.measured) one["measured"] = measured_json(*row.measured);
    json["roles"].push_back(one);
  }
  return json;
}

// Narrow formats, memory choices, frontier, sensitivity: what a search has of them.
void add_search(const Advice& advice, ordered_json& json) {
  for (const NarrowOutcome& outcome : advice.narrow) {
    ordered_json one = {{"format", outcome.format}, {"passes", outcome.passed.has_value()}};
    if (outcome.passed) {
      one["lane"] = outcome.passed->candidate.lane;
      one["linear_layers"] = outcome.linear;
      one["faster"] = outcome.is_faster;
    } else {
      one["why_not"] = outcome.why_not;
    }
    json["narrow"].push_back(one);
  }
  for (const MemoryOutcome& outcome : advice.memory) {
    json["memory"].push_back({{"choice", outcome.choice},
                              {"lane", outcome.trial.candidate.lane},
                              {"passes", outcome.passes()},
                              {"gap", json_number(outcome.trial.judgement.gap)}});
  }
  for (const FrontierPoint& point : advice.frontier) {
    ordered_json one = {{"format", point.format},
                        {"layers", point.layers},
                        {"cost", json_number(point.cost)},
                        {"score", json_number(point.score)}};
    if (!point.lane.empty()) {
      one["lane"] = point.lane;
      one["passes"] = point.passes;
    }
    json["frontier"].push_back(one);
  }
  if (!advice.sensitivity.layers.empty()) {
    json["sensitivity"] = sensitivity_json(advice.sensitivity);
  }
}

}  // namespace

std::string advice_json(const Advice& advice, const AdviceFacts& facts) {
  constexpr std::string_view kAnswers[] = {"plain", "exceptions", "fp32", "too_short",
                                           "fp32_broke"};
  ordered_json json = {{"format", "lockstep-advice"},
                       {"format_version", 1},
                       {"model", facts.model},
                       {"answer", kAnswers[static_cast<size_t>(advice.answer)]},
                       {"sentence", answer_sentence(advice, facts)},
                       {"steps", advice.steps},
                       {"candidates_run", facts.lanes},
                       {"replays", facts.replays},
                       {"layers_measured", facts.measured},
                       {"layers", advice.network.layers.size()},
                       {"linear_layers", advice.network.linear.size()},
                       {"gpu", advice.gpu->name},
                       {"out_of_budget", advice.out_of_budget}};
  for (const Trial& trial : advice.tried) {
    const bool is_chosen = advice.chosen && advice.chosen->candidate.lane == trial.candidate.lane;
    ordered_json one = {
        {"lane", trial.candidate.lane},
        {"format", trial.candidate.format},
        {"loss", json_number(trial.judgement.tail_loss)},
        {"gap", json_number(trial.judgement.gap)},
        {"noise", json_number(std::max(trial.judgement.batch_noise, trial.judgement.chaos))},
        {"skipped_steps", trial.skips},
        {"verdict", to_string(trial.judgement.verdict)},
        {"passes", trial.passes()},
        {"relative_time", json_number(trial.cost.seconds / advice.fp32_cost.seconds)},
        {"fp32", kept_json(advice, trial.candidate.fp32, is_chosen)}};
    if (!trial.candidate.narrow.empty()) {
      one["narrow"] = trial.candidate.narrow;
      one["not_narrow"] = kept_json(advice, trial.candidate.not_narrow, is_chosen);
    }
    if (trial.candidate.tf32) one["tf32"] = true;
    if (!trial.candidate.memory.empty()) one["memory"] = trial.candidate.memory;
    const ScaleChoice& scale = trial.candidate.scale;
    if (scale.scales) one["loss_scale"] = {{"dynamic", scale.dynamic}, {"start", scale.start}};
    json["tried"].push_back(one);
    if (is_chosen) json["chosen"] = json["tried"].size() - 1;
  }
  if (!facts.no_proof.empty()) json["no_proof"] = facts.no_proof;
  if (facts.proof) {
    constexpr std::string_view kResults[] = {"pass", "fail", "inconclusive"};
    const Proof& proof = *facts.proof;
    json["proof"] = {{"result", kResults[static_cast<size_t>(proof.result)]},
                     {"seeds", proof.seeds()},
                     {"mean_gap", json_number(proof.mean)},
                     {"upper_bound", json_number(proof.smallest_shown())},
                     {"tolerance", json_number(proof.tolerance)},
                     {"fall", json_number(proof.fall)},
                     {"chaos", json_number(proof.chaos)},
                     {"seed_scatter", json_number(proof.seed_scatter)},
                     {"gap_scatter", json_number(proof.gap_scatter)},
                     {"most_breaking", json_number(proof.most_breaking())}};
  }
  for (const RangeTable& ranges : advice.ranges) {
    json["loss_scales"][ranges.format->name] = range_object(ranges);
  }
  add_search(advice, json);
  json["not_tested"] = facts.not_tested;
  return json.dump(2) + "\n";
}

std::string ranges_json(const RangeTable& ranges, const std::vector<ScaleCourse>& courses,
                        const std::string& model, int64_t steps) {
  ordered_json json = {{"format", "lockstep-ranges"},
                       {"format_version", 1},
                       {"model", model},
                       {"steps", steps},
                       {"loss_scales", {{ranges.format->name, range_object(ranges)}}}};
  const auto of = [](const SettledScale& scale) {
    return ordered_json{{"lo_exponent", scale.lo},
                        {"hi_exponent", scale.hi},
                        {"mode_exponent", scale.mode},
                        {"skipped_steps", scale.skips}};
  };
  for (const ScaleCourse& course : courses) {
    json["lanes"].push_back({{"lane", course.lane},
                             {"predicted", of(course.predicted)},
                             {"recorded", of(course.recorded)}});
  }
  return json.dump(2) + "\n";
}

}  // namespace lockstep
