// What a lane is, how it ended, and what was measured of it.
#include "reports/run/lane_json.h"

#include <string_view>
#include <utility>

#include "analysis/report/main_finding.h"
#include "reports/run/finding_json.h"
#include "reports/run/views_json.h"
#include "reports/words/lane_sentence.h"
#include "reports/words/tried_text.h"

namespace lockstep {
namespace {

std::string_view kind_of(const LaneOf& l) {
  if (l.lane.info.is_reference) return "reference";
  if (l.lane.is_captured()) return "captured";
  if (l.lane.is_twin()) return "twin";
  return l.lane.is_candidate() ? "candidate" : "truth";
}

struct ScalerOf {
  const Report& report;
  const ScalerReport& scaler;
};
struct SkipOf {
  const Report& report;
  const SkipEvent& skip;
};
struct LayerOf {
  const Report& report;
  const LayerHealth& row;
};
struct SumOf {
  const Site& site;
  const AccumulatorHealth& sum;
};
struct ModelOf {
  const Report& report;
  const HardwarePair& pair;
};
struct FirstOf {
  const Report& report;
  const FirstDifference& place;
};
struct GapOf {
  const Report& report;
  const SiteGap& gap;
};

std::vector<SumOf> sums_of(const LaneOf& l) {
  std::vector<SumOf> out;
  for (size_t s = 0; s < l.lane.sums.size(); ++s) {
    if (l.lane.sums[s].samples > 0) out.push_back({l.report.sites.sites[s], l.lane.sums[s]});
  }
  return out;
}

std::vector<NormComparison> norms_of(const CapturedComparison& beside) {
  std::vector<NormComparison> out = {beside.first, beside.last};
  std::erase_if(out, [](const NormComparison& norm) { return norm.step < 0; });
  return out;
}

const JsonObject<SkipOf>& json_object(const SkipOf*) {
  static const JsonObject<SkipOf> keys(
      "", {
              {"step", [](auto& s) { return s.skip.step; }},
              {"scale", [](auto& s) { return s.skip.scale; }},
              {"scale_after", [](auto& s) { return s.skip.scale_after; }},
              {"culprit", [](auto& s) { return site_of(s.report, s.skip.culprit_site); },
               "the first site that was not finite; absent: not measured"},
          });
  return keys;
}

}  // namespace

const JsonObject<Evaluation>& json_object(const Evaluation*) {
  static const JsonObject<Evaluation> keys("",
                                           {
                                               {"steps_done", &Evaluation::steps_done, "before it"},
                                               {"loss", &Evaluation::loss},
                                               {"accuracy", &Evaluation::accuracy},
                                               {"examples", &Evaluation::example_count},
                                           });
  return keys;
}

const JsonObject<GrowthEvent>& json_object(const GrowthEvent*) {
  static const JsonObject<GrowthEvent> keys(
      "", {
              {"step", &GrowthEvent::step, "the last one with the old scale"},
              {"scale", &GrowthEvent::scale},
              {"scale_after", &GrowthEvent::scale_after},
          });
  return keys;
}

const JsonObject<Stagnation>& json_object(const Stagnation*) {
  static const JsonObject<Stagnation> keys(
      "", {
              {"layer", &Stagnation::layer},
              {"stagnant", &Stagnation::stagnant,
               "updates with round(w + dw) == w although dw is not zero"},
              {"count", &Stagnation::count, "all of them"},
          });
  return keys;
}

const JsonObject<NormComparison>& json_object(const NormComparison*) {
  static const JsonObject<NormComparison> keys(
      "",
      {
          {"step", &NormComparison::step},
          {"captured", &NormComparison::captured, "norm of all gradients"},
          {"lane", &NormComparison::lane},
          {"furthest", &NormComparison::furthest,
           "the parameter whose norm differs by the largest factor"},
          {"furthest_ratio", &NormComparison::furthest_ratio, "of its norm to the captured one"},
      });
  return keys;
}

const JsonObject<CapturedComparison>& json_object(const CapturedComparison*) {
  static const auto has_losses = [](auto& c) { return c.losses.has_value(); };
  static const JsonObject<CapturedComparison> keys(
      "",
      {
          {"compared_losses", only_if(has_losses, [](auto& c) { return c.losses->compared_steps; }),
           "steps; absent: this lane does not do what PyTorch did"},
          {"departure", only_if(has_losses, [](auto& c) { return c.losses->departure; }),
           "the first step whose loss differs by more than rounding explains; -1: none"},
          {"compared_scales", &CapturedComparison::compared_steps,
           "steps with a loss scale in both"},
          {"scaler_disagrees_at",
           only_if([](auto& c) { return c.disagreement.has_value(); },
                   [](auto& c) { return c.disagreement->step; }),
           "the first step in which one of them found an overflow and the other did not; absent: "
           "none"},
          {"gradient_norms", norms_of,
           "of the first and the last step with finite captured gradients"},
      });
  return keys;
}

const JsonObject<EqualProducts>& json_object(const EqualProducts*) {
  static const JsonObject<EqualProducts> keys(
      "", {
              {"products", &EqualProducts::products,
               "in the first step that differs and in those without any difference"},
              {"same", &EqualProducts::same, "of them, with the same bits"},
          });
  return keys;
}

const JsonObject<DeviceProduct>& json_object(const DeviceProduct*) {
  static const JsonObject<DeviceProduct> keys(
      "", {
              {"m", &DeviceProduct::m, "rows"},
              {"n", &DeviceProduct::n, "columns"},
              {"k", &DeviceProduct::k, "products per sum"},
              {"batch", &DeviceProduct::batch, "products in one call"},
              {"algorithm", &DeviceProduct::algorithm, "the library's number; -1: it has none"},
              {"most_parts", &DeviceProduct::most_parts,
               "upper limit of the parts into which the sum over k may be split"},
          });
  return keys;
}

const JsonObject<DeviceWork>& json_object(const DeviceWork*) {
  static const JsonObject<DeviceWork> keys(
      "", {
              {"products", &DeviceWork::products, "calls for products"},
              {"kinds", [](auto& d) { return d.kinds.size(); },
               "different products: by site, size and the library's algorithm"},
              {"bytes_up", &DeviceWork::bytes_up, "copied to the device"},
              {"bytes_down", &DeviceWork::bytes_down, "copied back"},
              {"bytes_kept", &DeviceWork::bytes_kept, "of factors that were there already"},
          });
  return keys;
}

const JsonObject<EqualStep>& json_object(const EqualStep*) {
  static const JsonObject<EqualStep> keys(
      "equal_step",
      {
          {"step", &EqualStep::step},
          {"loss", &EqualStep::loss},
          {"reference_loss", &EqualStep::of_reference},
          {"twin_loss", &EqualStep::of_twin, "`null`: no twin"},
          {"has_wrong_loss", &EqualStep::has_wrong_loss,
           "it differs by 16 unit roundoffs (1.6 % to 25 %) and by 8 times what one ulp changes"},
          {"has_wrong_gradients", &EqualStep::has_wrong_gradients,
           "all weight gradients together are wrong by half, and a result of the forward pass by "
           "its "
           "own size"},
      });
  return keys;
}

const JsonObject<WatchedStats>& json_object(const WatchedStats*) {
  static const JsonObject<WatchedStats> keys(
      "watched_stats",
      {
          {"count", &WatchedStats::count, "elements"},
          {"compared", &WatchedStats::compared, "of them finite in both: what follows is of these"},
          {"nonfinite", &WatchedStats::nonfinite, "finite in the reference alone"},
          {"mean_size", &WatchedStats::mean_reference, "mean of abs(reference)"},
          {"mean_error", &WatchedStats::mean_error, "mean of abs(lane - reference)"},
          {"largest_error", &WatchedStats::largest_error},
          {"relative_error", &WatchedStats::relative_error, "`mean_error` over `mean_size`"},
          {"kl", &WatchedStats::mean_kl,
           "mean of r - 1 - log r, with r = exp(lane - reference); `null`: no log-probabilities"},
          {"largest_ratio", &WatchedStats::largest_ratio,
           "of two probabilities, either way; `null`: the same"},
      });
  return keys;
}

const JsonObject<WatchedReport>& json_object(const WatchedReport*) {
  static const JsonObject<WatchedReport> keys(
      "watched",
      {
          {"name", &WatchedReport::name, "the module's path, or the name that the step gave"},
          {"equal_weights", &WatchedReport::equal,
           "over all steps that begin with the reference's weights: the first one; in `synced` "
           "mode every step"},
          {"last_step", &WatchedReport::last_step, "the last step that computes it; -1: none"},
          {"last", &WatchedReport::last, "in that step"},
          {"nonfinite", &WatchedReport::nonfinite,
           "elements of all steps that are finite in the reference alone"},
      });
  return keys;
}

const JsonObject<PartEffect>& json_object(const PartEffect*) {
  static const JsonObject<PartEffect> keys(
      "part_effect",
      {
          {"name", &PartEffect::name, "the module's path"},
          {"batches", &PartEffect::batches, "that have it: captured steps of ranks"},
          {"nonfinite_batches", &PartEffect::nonfinite,
           "of them: where its loss is not finite; left out of what follows"},
          {"effect", &PartEffect::effect, "change of the model's loss, a mean over the batches"},
          {"first_order", &PartEffect::first_order, "of it"},
          {"second_order", &PartEffect::second_order,
           "of it, from the squares of the tokens' shares; `null`: not measured"},
          {"effect_error", &PartEffect::spread,
           "standard error of `effect` over the batches; `null`: one batch"},
          {"output_error", &PartEffect::output_error,
           "mean of abs(lane - reference) over its size"},
          {"input_gradient_error", &PartEffect::input_gradient_error,
           "norm of the difference over the reference's; `null`: it has none"},
          {"weight_gradient_error", &PartEffect::weight_gradient_error, "likewise, of all weights"},
          {"to_zero", &PartEffect::to_zero, "the largest share of nonzero values at one site"},
          {"out_of_range", &PartEffect::out_of_range,
           "the largest share at one site of values that became infinite or were set to the "
           "largest number"},
          {"headroom", &PartEffect::headroom,
           "octaves from the largest magnitude to the format's; `null`: no narrow format"},
          {"layer", &PartEffect::layer, "whose forward roundings move the loss most; \"\": none"},
          {"layer_share", &PartEffect::layer_share, "its share of what all roundings do"},
      });
  return keys;
}

const JsonObject<LaneJudgement>& json_object(const LaneJudgement*) {
  using Judged = LaneJudgement;
  static const JsonObject<Judged> keys(
      "",
      {
          {"outcome", [](auto& j) { return to_string(j.verdict); },
           "`reference`, `fine`, `unclear`, `worse`, `stalled`, `broke`, `too short`, `not "
           "judged` (the report says \"not judged\" for both; "
           "[findings.md](findings.md#outcomes))"},
          {"loss", &Judged::tail_loss, "mean over the last steps"},
          {"gap", &Judged::gap, "`loss` minus the reference's"},
          {"batch_noise", &Judged::batch_noise,
           "the noise that `gap` is compared with: of batches; `null`: not known"},
          {"chaos", &Judged::chaos, "of one ulp"},
          {"chaos_bound", &Judged::chaos_bound, "bound on it at an error rate of 1 %"},
          {"seed_bound", &Judged::seed_bound, "bound from the scatter over the seeds"},
          {"correct_drop", &Judged::correct_drop,
           "held-out answers that the reference has right and the lane has not, mean over the "
           "seeds"},
          {"correct_noise", &Judged::correct_noise, "the noise that it is compared with"},
          {"correct_chaos_bound", &Judged::correct_chaos_bound},
          {"correct_seed_bound", &Judged::correct_seed_bound},
          {"answers", &Judged::answers, "held-out answers of one evaluation; 0: none"},
          {"seeds", &Judged::seeds, "that the outcome rests on"},
          {"broke_in", &Judged::broke_in, "seeds in which the lane broke"},
          {"seeds_to_decide", &Judged::seeds_to_decide,
           "of an `unclear` lane: about how many seeds would decide; 101: more than 100; 0: not "
           "unclear, or no scatter is known"},
      });
  return keys;
}

namespace {

const JsonObject<ScalerOf>& json_object(const ScalerOf*) {
  static const JsonObject<ScalerOf> keys(
      "",
      {
          {"final_scale", [](auto& s) { return s.scaler.final_scale; }},
          {"scales", [](auto& s) { return s.scaler.scales; }, "by step, until the lane stopped"},
          {"loss", [](auto& s) { return filled(s.scaler.loss); },
           "whose scaler this is; absent: of all losses"},
          {"skips", [](auto& s) { return each<SkipOf>(s.report, s.scaler.overflows); },
           "skipped steps in which this scaler found an overflow"},
          {"growths", [](auto& s) { return s.scaler.growths; }, "steps after which the scale grew"},
      });
  return keys;
}

const JsonObject<LayerOf>& json_object(const LayerOf*) {
  static const JsonObject<LayerOf> keys(
      "",
      {
          {"layer", [](auto& l) { return l.row.layer; },
           "module path; empty for what is in no module"},
          {"role", [](auto& l) { return to_string(l.row.role); },
           "`weight`, `activation`, `grad_weight`, ..."},
          {"site", [](auto& l) { return l.report.site(l.row.site); },
           "the worst one, which has these numbers"},
          {"steps", [](auto& l) { return l.row.worst.steps; },
           "in which it was measured, or its roundings counted"},
          {"count", [](auto& l) { return l.row.worst.count; }, "values, over all steps"},
          {"nonzero", [](auto& l) { return l.row.worst.nonzero; },
           "of these not zero before rounding"},
          {"to_zero", [](auto& l) { return l.row.worst.to_zero; },
           "of these rounded to zero (underflow)"},
          {"to_subnormal", [](auto& l) { return l.row.worst.to_subnormal; },
           "of these below the smallest normal number"},
          {"to_infinity", [](auto& l) { return l.row.worst.to_infinity; },
           "finite values that became infinite (overflow)"},
          {"saturated", [](auto& l) { return l.row.worst.saturated; }, "cut to the largest number"},
          {"nan", [](auto& l) { return l.row.worst.nan; }},
          {"infinite_in_steps", [](auto& l) { return l.row.worst.infinite_in_steps; },
           "steps in which a value was infinite before rounding"},
          {"worst_step", [](auto& l) { return l.row.worst.worst_step; },
           "that lost the largest share; -1: none lost any"},
          {"worst_step_rate", [](auto& l) { return l.row.worst.worst_step_rate; }, "that share"},
          {"first_nonfinite_step", [](auto& l) { return l.row.worst.first_nonfinite_step; },
           "-1: none"},
          {"measured_sites", [](auto& l) { return l.row.measured_sites; },
           "of this layer and role"},
      });
  return keys;
}

const JsonObject<SumOf>& json_object(const SumOf*) {
  static const JsonObject<SumOf> keys(
      "", {
              {"site", [](auto& s) { return s.site; }},
              {"samples", [](auto& s) { return s.sum.samples; }, "outputs summed again"},
              {"compared", [](auto& s) { return s.sum.compared; }, "of these finite both ways"},
              {"addends", [](auto& s) { return s.sum.addends; }, "products that are not zero"},
              {"swamped", [](auto& s) { return s.sum.swamped; },
               "of these smaller than half an ulp of the sum before them"},
              {"err_sq", [](auto& s) { return s.sum.err_sq; }, "sum of (computed - exact)^2"},
              {"exact_sq", [](auto& s) { return s.sum.exact_sq; }, "sum of exact^2"},
              {"err_max_share", [](auto& s) { return s.sum.err_max_share; },
               "largest error relative to the sum of the products' magnitudes"},
          });
  return keys;
}

const JsonObject<FirstOf>& json_object(const FirstOf*) {
  static const JsonObject<FirstOf> keys(
      "", {
              {"site", [](auto& f) { return f.report.site(f.place.site); }},
              {"rounded", [](auto& f) { return f.place.is_rounded; },
               "by `[cuda]` the results left the library in the factors' format"},
              {"products", [](auto& f) { return f.place.products; },
               "of this op, on the device; none: a value that no site shows differs"},
          });
  return keys;
}

const JsonObject<GapOf>& json_object(const GapOf*) {
  static const JsonObject<GapOf> keys(
      "", {
              {"site", [](auto& g) { return g.report.site(g.gap.site); }},
              {"tensors", [](auto& g) { return g.gap.tensors; }, "compared: one per measured step"},
              {"same", [](auto& g) { return g.gap.same; }, "of them, with the same bits"},
              {"least", [](auto& g) { return g.gap.least; },
               "lower bound of the norm of device minus model over the reference's, in the steps "
               "whose bits differ; null: values are not finite, or the reference is zero"},
              {"most", [](auto& g) { return g.gap.most; }, "upper bound of it"},
          });
  return keys;
}

const JsonObject<ModelOf>& json_object(const ModelOf*) {
  static const JsonObject<ModelOf> keys(
      "",
      {
          {"model",
           [](auto& m) { return m.report.lanes[static_cast<size_t>(m.pair.model_lane)].info.name; },
           "that lane"},
          {"tensors", [](auto& m) { return m.pair.tensors; },
           "compared: one per site and measured step"},
          {"same", [](auto& m) { return m.pair.same; }, "of them, with the same bits"},
          {"one_chain", [](auto& m) { return m.pair.one_chain; },
           "products on the device whose factors are equal in both lanes, in one chain by the "
           "library's numbers"},
          {"in_parts", [](auto& m) { return m.pair.in_parts; },
           "the same of products that the library may have split"},
          {"loss_gap", [](auto& m) { return m.pair.loss_gap; },
           "largest relative difference of a step's losses, where both are finite"},
          {"one_broke_at", [](auto& m) { return m.pair.one_broke_at; },
           "the first step in which one of the two losses alone is not finite; -1: none"},
          {"first_step", [](auto& m) { return m.pair.first_step; },
           "the first measured step whose bits differ; -1: none"},
          {"follows_unmeasured", [](auto& m) { return m.pair.follows_unmeasured; },
           "the step before it was not measured, so that it is not known where bits differed "
           "first"},
          {"first", [](auto& m) { return each<FirstOf>(m.report, m.pair.first); },
           "in that step: places whose bits differ although all that enters them is equal"},
          {"sites", [](auto& m) { return each<GapOf>(m.report, m.pair.gaps); },
           "a place whose bits differ in some step"},
      });
  return keys;
}

}  // namespace

const JsonObject<LaneOf>& json_object(const LaneOf*) {
  static const JsonObject<LaneOf> keys =
      JsonObject<LaneOf>(
          "",
          {
              {"name", [](auto& l) { return l.lane.info.name; }},
              {"kind",
               kind_of,
               "`reference`; `candidate`; `twin` (one ulp moved: chaos); `truth` (FP64); "
               "`captured` (what PyTorch recorded)",
               {"reference", "candidate", "twin", "truth", "captured"}},
              {"engine", [](auto& l) { return l.lane.info.engine; },
               "`software`, `cpu`, `cuda`, `cuda-host`"},
              {"target", [](auto& l) { return l.lane.info.target; },
               "the hardware whose sums are imitated; empty: none"},
              {"in_software", [](auto& l) { return l.lane.info.fallbacks; },
               "kernels that ran in software instead of on the engine"},
              {"device",
               only_if([](auto& l) { return l.lane.device.products > 0; },
                       [](auto& l) { return l.lane.device; }),
               "what the engine's device did; absent without one"},
              {"beside_model",
               only_if([](auto& l) { return l.lane.beside_model.has_value(); },
                       [](auto& l) {
                         return ModelOf{l.report, *l.lane.beside_model};
                       }),
               "how the lane differs from the software lane with the same policy and chip; absent "
               "if the run has no such lane, or this lane uses no device"},
              {"sentence",
               only_if([](auto& l) { return has_sentence(l.lane); },
                       [](auto& l) { return lane_sentence(l.report, l.lane); }),
               "the lane in at most three lines, as the report begins; of candidates, and of "
               "every lane that broke"},
          })
          .also([](auto& l) -> const LaneJudgement& { return l.lane.judgement; })
          .more({
              {"findings_seed", [](auto& l) { return l.lane.findings_seed; },
               "the seed of all that follows"},
              {"accuracy", [](auto& l) { return l.lane.accuracy; },
               "share of right answers at the last evaluation; several seeds: their mean"},
              {"weight_distance", [](auto& l) { return l.lane.weight_distance; },
               "norm of the weights' distance from the reference's, relative, after the last "
               "step"},
              {"seconds", [](auto& l) { return l.lane.seconds; },
               "the lane's own work; on several threads lanes overlap"},
              {"skipped_steps", [](auto& l) { return l.lane.skips; },
               "steps that the loss scaler skipped"},
              {"repeated_attempts", [](auto& l) { return l.lane.repeated_attempts; },
               "batches repeated with another loss scale"},
              {"died_at", [](auto& l) { return l.lane.info.died_at; }, "step; -1: it did not die"},
              {"nonfinite_loss_at", [](auto& l) { return l.lane.nonfinite_loss_at; },
               "the first step whose loss is not finite; -1: none"},
              {"losses", [](auto& l) { return l.lane.loss; },
               "unscaled training loss of every step"},
              {"equal_step",
               only_if([](auto& l) { return l.lane.equal.step >= 0; },
                       [](auto& l) { return l.lane.equal; }),
               "a step that the lane began with the reference's weights (the first one; in "
               "`synced` mode the one with the largest difference); of candidates"},
              {"parts",
               only_if([](auto& l) { return !l.lane.parts.empty(); },
                       [](auto& l) { return l.lane.parts; }),
               "what the lane does to each part of a larger model; absent: no parts, and in the "
               "reference"},
              {"watched",
               only_if([](auto& l) { return !l.lane.watched.empty(); },
                       [](auto& l) { return l.lane.watched; }),
               "values that `watch=`, `watch_value()` or `--watch` names; absent: none, and in the "
               "reference"},
              {"tried",
               [](auto& l) { return filled(l.lane.tried ? tried_text(*l.lane.tried) : ""); },
               "what the remedies did, in words (`--try`); absent: they were not run"},
              {"evaluations", [](auto& l) { return l.lane.evaluations; }, "of held-out data"},
              {"scalers",
               [](auto& l) {
                 return l.lane.has_scaler ? each<ScalerOf>(l.report, l.lane.scalers)
                                          : std::vector<ScalerOf>();
               },
               "one, or one for each loss; empty: the lane has no loss scale"},
              {"findings",
               [](auto& l) {
                 std::vector<FindingOf> out;
                 for (const Finding& f : l.lane.findings) out.push_back({l.report, l.lane, f});
                 return out;
               },
               "the gravest first"},
              {"layers", [](auto& l) { return each<LayerOf>(l.report, l.lane.health); },
               "the worst site of each layer and role, over all steps before the loss was not "
               "finite"},
              {"updates", [](auto& l) { return l.lane.updates; }, "weight updates, by layer"},
              {"sums", sums_of,
               "sums of products that were sampled and formed again exactly, by site"},
          })
          .also([](auto& l) {
            return std::optional(LaneViewsOf{l.report, l.lane});
          })
          .more({
              {"beside_captured", [](auto& l) { return l.lane.beside_captured; },
               "next to what PyTorch recorded; absent: no capture was replayed"},
          });
  return keys;
}

}  // namespace lockstep
