// The rows of the keys of `recommend --json`.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "reports/advice/advice_keys.h"
#include "reports/advice/advice_text.h"
#include "reports/run/range_json.h"

namespace lockstep {
namespace {

using nlohmann::ordered_json;

struct Kept {
  const Advice& advice;
  const KeptLayer& layer;
  bool is_chosen;
};
struct Tried {
  const Advice& advice;
  const Trial& trial;

  const Candidate& candidate() const { return trial.candidate; }
  bool is_chosen() const {
    return advice.chosen && advice.chosen->candidate.lane == candidate().lane;
  }
  std::vector<Kept> kept(const std::vector<KeptLayer>& layers) const {
    std::vector<Kept> out;
    for (const KeptLayer& layer : layers) out.push_back({advice, layer, is_chosen()});
    return out;
  }
};

const JsonObject<Kept>& json_object(const Kept*) {
  static const JsonObject<Kept> keys(
      "", {
              {"layer", [](auto& k) { return k.layer.layer; },
               "module path; empty for what is in no module"},
              {"reason", [](auto& k) { return k.layer.reason; }, "why"},
              {"measured",
               [](auto& k) { return k.is_chosen && k.advice.without.contains(k.layer.layer); },
               "a run in which this layer had the low format did not pass; false for other "
               "candidates than the chosen one"},
          });
  return keys;
}

}  // namespace

const JsonObject<ScaleChoice>& json_object(const ScaleChoice*) {
  static const JsonObject<ScaleChoice> keys(
      "", {
              {"dynamic", &ScaleChoice::dynamic, "grows and shrinks, or stays"},
              {"start", &ScaleChoice::start, "the first scale"},
          });
  return keys;
}

namespace {

const JsonObject<Tried>& json_object(const Tried*) {
  static const auto has_narrow = [](auto& t) { return !t.candidate().narrow.empty(); };
  static const JsonObject<Tried> keys(
      "",
      {
          {"lane", [](auto& t) { return t.candidate().lane; },
           "name of the lane: a preset, or a policy file in the search's folder"},
          {"format", [](auto& t) { return t.candidate().format; },
           "the low-precision format of its autocast"},
          {"loss", [](auto& t) { return t.trial.judgement.tail_loss; }, "mean over the last steps"},
          {"gap", [](auto& t) { return t.trial.judgement.gap; }, "`loss` minus that of FP32"},
          {"noise",
           [](auto& t) { return std::max(t.trial.judgement.batch_noise, t.trial.judgement.chaos); },
           "how large a gap batches and one ulp of the weights make by themselves"},
          {"skipped_steps", [](auto& t) { return t.trial.skips; },
           "steps that the loss scaler skipped"},
          {"verdict", [](auto& t) { return to_string(t.trial.judgement.verdict); },
           "`fine`, `unclear`, `worse`, `stalled`, `broke`, `too short`, `not judged`"},
          {"passes", [](auto& t) { return t.trial.passes(); },
           "trained as FP32 does, and skips no steps late"},
          {"relative_time",
           [](auto& t) { return t.trial.cost.seconds / t.advice.fp32_cost.seconds; },
           "an estimate: of FP32's step on `gpu`"},
          {"fp32", [](auto& t) { return t.kept(t.candidate().fp32); },
           "layers kept in FP32; empty for plain autocast"},
          {"narrow", [](auto& t) { return filled(t.candidate().narrow); },
           "the format of its linear layers; absent: none"},
          {"not_narrow",
           only_if(has_narrow, [](auto& t) { return t.kept(t.candidate().not_narrow); }),
           "linear layers that are not in `narrow`"},
          {"tf32",
           only_if([](auto& t) { return t.candidate().tf32; }, [](auto&) { return true; }),
           "products of FP32 factors in TF32; absent: not",
           {true}},
          {"memory", [](auto& t) { return filled(t.candidate().memory); },
           "narrower state, weights or sums: `state-bf16`, `weights-nearest`, "
           "`weights-stochastic`, `weights-kahan`, `sums-fp16`, `sums-fp8-fast`"},
          {"loss_scale",
           only_if([](auto& t) { return t.candidate().scale.scales; },
                   [](auto& t) { return t.candidate().scale; }),
           "absent if the candidate needs none"},
      });
  return keys;
}

std::string_view name_of(Proof::Result result) {
  constexpr std::string_view kResults[] = {"pass", "fail", "inconclusive"};
  return kResults[static_cast<size_t>(result)];
}

std::string_view name_of(Advice::Answer answer) {
  constexpr std::string_view kAnswers[] = {"plain", "exceptions", "fp32", "too_short",
                                           "fp32_broke"};
  return kAnswers[static_cast<size_t>(answer)];
}

std::optional<size_t> index_of_chosen(const Answered& a) {
  if (!a.advice.chosen) return std::nullopt;
  const std::string& lane = a.advice.chosen->candidate.lane;
  for (size_t i = a.advice.tried.size(); i-- > 0;) {
    if (a.advice.tried[i].candidate.lane == lane) return i;
  }
  return std::nullopt;
}

}  // namespace

const JsonObject<Proof>& json_object(const Proof*) {
  static const JsonObject<Proof> keys(
      "", {
              {"result",
               [](auto& p) { return name_of(p.result); },
               "",
               {"pass", "fail", "inconclusive"}},
              {"seeds", &Proof::seeds, "new seeds that were run"},
              {"mean_gap", &Proof::mean,
               "mean of loss minus FP32's over them; `null`: it broke in one"},
              {"upper_bound", &Proof::smallest_shown, "the gap is below this at 95 % confidence"},
              {"tolerance", &Proof::tolerance, "the largest gap that passes"},
              {"fall", &Proof::fall, "by how much FP32's loss fell, mean over the seeds"},
              {"chaos", &Proof::chaos, "the gap that one ulp of the weights makes"},
              {"seed_scatter", &Proof::seed_scatter,
               "standard deviation of FP32's own loss over the seeds"},
              {"gap_scatter", &Proof::gap_scatter, "standard deviation of the gaps"},
              {"most_breaking", &Proof::most_breaking,
               "none broke, so at most this share of all seeds does, at 95 % confidence"},
          });
  return keys;
}

const JsonObject<NarrowOutcome>& json_object(const NarrowOutcome*) {
  static const auto passes = [](const NarrowOutcome& o) { return o.passed.has_value(); };
  static const JsonObject<NarrowOutcome> keys(
      "", {
              {"format", &NarrowOutcome::format},
              {"passes", passes, "trained as FP32 does, in some layers"},
              {"lane", only_if(passes, [](auto& o) { return o.passed->candidate.lane; }),
               "the entry of `tried` that passed"},
              {"linear_layers", only_if(passes, &NarrowOutcome::linear), "in the format"},
              {"faster", only_if(passes, &NarrowOutcome::is_faster),
               "by the estimate, than what it stands on"},
              {"why_not", only_if([](auto& o) { return !o.passed; }, &NarrowOutcome::why_not),
               "if it does not pass"},
          });
  return keys;
}

const JsonObject<MemoryOutcome>& json_object(const MemoryOutcome*) {
  static const JsonObject<MemoryOutcome> keys(
      "", {
              {"choice", &MemoryOutcome::choice, "see `tried[].memory`"},
              {"lane", [](auto& o) { return o.trial.candidate.lane; }, "its entry of `tried`"},
              {"passes", &MemoryOutcome::passes, "trained as FP32 does and loses no updates"},
              {"gap", [](auto& o) { return o.trial.judgement.gap; }},
          });
  return keys;
}

const JsonObject<FrontierPoint>& json_object(const FrontierPoint*) {
  static const auto ran = [](auto& p) { return !p.lane.empty(); };
  static const JsonObject<FrontierPoint> keys(
      "",
      {
          {"format", &FrontierPoint::format, "that layers may have; `fp32`: layers kept in it"},
          {"layers", &FrontierPoint::layers, "in the format"},
          {"cost", &FrontierPoint::cost, "relative to the frontier's largest"},
          {"score", &FrontierPoint::score, "sum over the layers, in units of batch noise squared"},
          {"lane", filled(&FrontierPoint::lane),
           "the entry of `tried` that ran it; absent: not run"},
          {"passes", only_if(ran, &FrontierPoint::passes)},
      });
  return keys;
}

const JsonObject<MeasuredSensitivity>& json_object(const MeasuredSensitivity*) {
  using Measured = MeasuredSensitivity;
  static const JsonObject<Measured> keys(
      "", {
              {"loss_error", &Measured::loss_error,
               "isolated: from the reference's weights, root mean square"},
              {"gradient_error", &Measured::gradient_error,
               "isolated: relative, of all weight gradients"},
              {"error_to_noise", &Measured::error_to_noise,
               "isolated: the same, each over its standard deviation from batch to batch "
               "(`weights[].noise_share`)"},
              {"gap", &Measured::accumulated, "accumulated: with its own weights, at the end"},
          });
  return keys;
}

const JsonObject<GradientNoise>& json_object(const GradientNoise*) {
  static const JsonObject<GradientNoise> keys(
      "", {
              {"weight", &GradientNoise::weight, "its name"},
              {"layer", &GradientNoise::layer},
              {"noise_share", &GradientNoise::share,
               "of its gradient's mean square, how much is scatter from batch to batch, 0 to 1"},
              {"basis",
               [](auto& n) { return n.is_measured() ? "measured" : "assumed"; },
               "`measured`: from the optimizer's average of gradients; `assumed`: taken to be 1",
               {"measured", "assumed"}},
              {"reason", filled(&GradientNoise::why_assumed), "why it was assumed"},
          });
  return keys;
}

const JsonObject<LayerSensitivity>& json_object(const LayerSensitivity*) {
  static const JsonObject<LayerSensitivity> keys =
      JsonObject<LayerSensitivity>(
          "",
          {
              {"layer", &LayerSensitivity::layer},
              {"format", &LayerSensitivity::format},
              {"score", &LayerSensitivity::score,
               "a variance in units of batch noise; measured where it was"},
          })
          .also(&LayerSensitivity::measured);
  return keys;
}

const JsonObject<RoleSensitivity>& json_object(const RoleSensitivity*) {
  static const JsonObject<RoleSensitivity> keys(
      "", {
              {"layer", &RoleSensitivity::layer},
              {"role", [](auto& r) { return to_string(r.role); }, "as in the run file"},
              {"format", &RoleSensitivity::format},
              {"score", &RoleSensitivity::score,
               "as a layer's, of this role's part; never the measurement"},
              {"effect", &RoleSensitivity::effect,
               "lost digits: what they do to the loss, to first order"},
              {"range_effect", &RoleSensitivity::range_effect, "lost range, likewise"},
              {"gradient_error", &RoleSensitivity::gradient_error,
               "relative rounding error of the weight gradient's factors"},
              {"error_to_noise", &RoleSensitivity::error_to_noise,
               "the same over the gradient's standard deviation from batch to batch"},
              {"updates_lost", &RoleSensitivity::updates_lost, "share of the updates' energy"},
              {"terms", &RoleSensitivity::terms, "of the longest sum"},
              {"measured", &RoleSensitivity::measured,
               "this role of this layer alone in the format; absent: not measured"},
          });
  return keys;
}

const JsonObject<SensitivityTable>& json_object(const SensitivityTable*) {
  using Table = SensitivityTable;
  static const JsonObject<Table> keys(
      "", {
              {"batch_noise", &Table::batch_noise,
               "standard deviation of the loss from one batch to the next"},
              {"rank_correlation",
               only_if(&Table::is_measured, [](auto& t) { return t.of_layers.value; }),
               "Spearman's, of the layers' scores and measurements; absent: nothing was measured; "
               "`null`: fewer than three"},
              {"role_rank_correlation",
               only_if(&Table::is_measured, [](auto& t) { return t.of_roles.value; }),
               "likewise, of roles in layers"},
              {"measured_top_third", only_if(&Table::is_measured, &Table::measured_top_third),
               "the score ranked badly, so the top third was measured"},
              {"floor", only_if(&Table::is_measured, &Table::floor),
               "what one ulp does, measured like a layer"},
              {"weights", filled(&Table::noise), "a row for each weight that has a gradient"},
              {"layers", filled(&Table::layers), "a row for each layer and format"},
              {"roles", filled(&Table::roles), "a row for each layer, role and format"},
          });
  return keys;
}

const JsonObject<Answered>& json_object(const Answered*) {
  static const JsonObject<Answered> keys(
      "",
      {
          format_key<Answered>("lockstep-advice"),
          version_key<Answered>(1),
          {"model", [](auto& a) { return a.facts.model; },
           "the built-in model, or the path of the capture"},
          {"answer",
           [](auto& a) { return name_of(a.advice.answer); },
           "`plain`: autocast as it is; `exceptions`: autocast with layers in FP32, or another "
           "loss scale; `fp32`: nothing that ran trained as FP32 does; `too_short`: FP32 itself "
           "has not learned in these steps, and nothing agreed with it in them; `fp32_broke`: "
           "FP32's own loss is not finite",
           {"plain", "exceptions", "fp32", "too_short", "fp32_broke"}},
          {"sentence", [](auto& a) { return answer_sentence(a.advice, a.facts); },
           "the answer in words, as the text output has it"},
          {"is_too_short", [](auto& a) { return a.advice.is_too_short; },
           "FP32 has not learned in these steps: what is recommended agrees with it in them; how "
           "training ends is not judged"},
          {"steps", [](auto& a) { return a.advice.steps; }, "of each run"},
          {"candidates_run", [](auto& a) { return a.facts.lanes; },
           "lanes that were run, FP32 and its twin not counted"},
          {"replays", [](auto& a) { return a.facts.replays; },
           "runs, each with one lane or several"},
          {"layers_measured", [](auto& a) { return a.facts.measured; },
           "short runs in which one layer, or one role of it, alone was low"},
          {"layers", [](auto& a) { return a.advice.network.layers.size(); },
           "layers that may use a low format"},
          {"linear_layers", [](auto& a) { return a.advice.network.linear.size(); },
           "layers with a linear op, which fp8, mxfp8 and nvfp4 apply to"},
          {"gpu", [](auto& a) { return a.advice.gpu->name; }, "of the estimates of time"},
          {"out_of_budget", [](auto& a) { return a.advice.out_of_budget; },
           "`--budget` ended the search: a cheaper policy may do"},
          {"tried", [](auto& a) { return filled(each<Tried>(a.advice, a.advice.tried)); },
           "candidates, in the order in which they ran; absent if none ran"},
          {"chosen", index_of_chosen,
           "index into `tried` of what is recommended; absent without one"},
          {"no_proof", [](auto& a) { return filled(a.facts.no_proof); },
           "why `--prove` was not run"},
          {"proof", [](auto& a) { return a.facts.proof; }, "with `--prove`"},
          {"loss_scales",
           [](auto& a) {
             std::vector<std::pair<std::string, RangeTable>> by_format;
             for (const RangeTable& r : a.advice.ranges) by_format.emplace_back(r.format->name, r);
             return filled(std::move(by_format));
           },
           "feasible loss scales by format, from the ranges of the trace; absent without a trace"},
          {"narrow", [](auto& a) { return filled(a.advice.narrow); },
           "narrow formats of `--formats`, and `tf32` for what is in FP32"},
          {"memory", [](auto& a) { return filled(a.advice.memory); }, "choices of `--also`"},
          {"frontier", [](auto& a) { return filled(a.advice.frontier); },
           "points of the knapsack's Pareto frontier, from the lowest score"},
          {"sensitivity",
           only_if([](auto& a) { return !a.advice.sensitivity.layers.empty(); },
                   [](auto& a) { return a.advice.sensitivity; }),
           "absent if FP32 itself did not train"},
          {"not_tested", [](auto& a) { return a.facts.not_tested; },
           "formats and choices that the options left out"},
      });
  return keys;
}

std::string advice_json(const Advice& advice, const AdviceFacts& facts) {
  return json_value(Answered{advice, facts}).dump(2) + "\n";
}

std::string ranges_json(const RangeTable& ranges, const std::vector<ScaleCourse>& courses,
                        const std::string& model, int64_t steps) {
  ordered_json json = {{"format", "lockstep-ranges"},
                       {"format_version", 1},
                       {"model", model},
                       {"steps", steps},
                       {"loss_scales", {{ranges.format->name, json_value(ranges)}}}};
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
