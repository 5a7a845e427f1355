// See advice_text.h.
#include "reports/advice_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "analysis/findings/finding_kinds.h"
#include "analysis/recommend/pytorch_recipe.h"
#include "reports/number_text.h"
#include "reports/range_text.h"
#include "src/core/text.h"

namespace lockstep {
namespace {

constexpr double kGradScalerStart = 65536;
constexpr std::string_view kDevice = "cuda";  // of the presets that candidates extend
constexpr size_t kLayersInSentence = 4;

using nlohmann::ordered_json;

ordered_json number(double value) {
  return std::isfinite(value) ? ordered_json(value) : ordered_json(nullptr);
}

double noise(const LaneJudgement& judged) {
  return std::max(judged.batch_noise, judged.chaos);
}

std::string interval_text(const ScaleInterval& scales) {
  if (scales.lo <= kMinScaleExponent && scales.hi >= kMaxScaleExponent) return "any";
  if (scales.lo <= kMinScaleExponent) return fmt::format("up to 2^{}", scales.hi);
  if (scales.hi >= kMaxScaleExponent) return fmt::format("from 2^{}", scales.lo);
  return fmt::format("2^{} to 2^{}", scales.lo, scales.hi);
}

std::string verdict_text(const Trial& trial) {
  if (trial.passes()) return "trains as fp32";
  const Verdict verdict = trial.judgement.verdict;
  return verdict == Verdict::kFine ? "still skips steps" : std::string(to_string(verdict));
}

// "Loss scale 2^-9 to 2^15: GradScaler's 65536 fits, keep it dynamic."
std::string scale_sentence(const Trial& trial, const RangeTable& ranges) {
  const ScaleChoice& scale = trial.candidate.scale;
  if (!scale.scales) return "No loss scale is needed.";
  const std::string between = "Loss scale " + interval_text(ranges.scales);
  if (!scale.dynamic) {
    return fmt::format("{}: keep it static at {}.", between, scale_text(scale.start));
  }
  if (scale.start != kGradScalerStart) {
    return fmt::format("{}: start GradScaler at {}, keep it dynamic.", between,
                       scale_text(scale.start));
  }
  const int start = std::ilogb(kGradScalerStart);
  if (ranges.scales.contains(start)) {
    return between + ": GradScaler's 65536 fits, keep it dynamic.";
  }
  if (start <= ranges.scales.hi + kHeadroomOctaves && trial.skips == 0) {
    return fmt::format(
        "{} with {} octave to spare: GradScaler's 65536 uses it and overflowed nowhere, keep it "
        "dynamic.",
        between, kHeadroomOctaves);
  }
  return fmt::format("{}: GradScaler's 65536 found its way here ({} skipped), keep it dynamic.",
                     between, counted(static_cast<uint64_t>(trial.skips), "step"));
}

std::string layer_names(const std::vector<LayerInFp32>& layers) {
  std::vector<std::string> names;
  for (const LayerInFp32& layer : layers) {
    if (names.size() == kLayersInSentence) break;
    names.push_back(layer.layer.empty() ? "(no layer)" : layer.layer);
  }
  std::string text = join(names, ", ");
  if (layers.size() > names.size())
    text += fmt::format(" and {} more", layers.size() - names.size());
  return text;
}

// What to paste. Layers in FP32, and scales that GradScaler needs arguments for, come from the
// module that --emit-pytorch writes.
std::string snippet(const Trial& trial) {
  const Candidate& candidate = trial.candidate;
  const ScaleChoice& scale = candidate.scale;
  const bool plain = candidate.fp32.empty() &&
                     (!scale.scales || (scale.dynamic && scale.start == kGradScalerStart));
  std::string text =
      plain ? "" : "  import amp  # written by --emit-pytorch amp.py\n  amp.apply(model)\n";
  if (scale.scales) {
    text += plain ? fmt::format("  scaler = torch.amp.GradScaler(\"{}\")\n", kDevice)
                  : fmt::format("  scaler = amp.scaler(\"{}\")\n", kDevice);
  }
  text += plain ? fmt::format("  with torch.autocast(\"{}\", dtype={}):\n", kDevice,
                              torch_dtype(candidate.format))
                : fmt::format("  with amp.autocast(\"{}\"):\n", kDevice);
  text += "      loss = ...  # your forward pass\n";
  return text + (scale.scales ? "  scaler.scale(loss).backward()\n  scaler.step(optimizer)\n"
                                "  scaler.update()\n"
                              : "  loss.backward()\n  optimizer.step()\n");
}

std::string proof_sentence(const Proof& proof) {
  if (proof.reference_broke) {
    return fmt::format("No proof: fp32 itself broke in the seed after {} new ones.", proof.seeds());
  }
  if (!std::isfinite(proof.mean)) {
    return fmt::format("Refuted: it broke in one of {} new seeds.", proof.seeds());
  }
  const std::string what = proof.tolerance > proof.share * proof.fall
                               ? "what one ulp does"
                               : fmt::format("{:g}% of the fall of fp32's loss", 100 * proof.share);
  const std::string runs = fmt::format(
      "mean gap {} over {} new seeds, at most {} at {:.0f}% confidence; tolerated: {} ({})",
      short_number(proof.mean), proof.seeds(), short_number(proof.smallest_shown()),
      100 * (1 - kProofErrorRate), short_number(proof.tolerance), what);
  switch (proof.result) {
    case Proof::Result::kPass:
      return "Proven: " + runs + ".";
    case Proof::Result::kFail:
      return "Refuted: " + runs + ".";
    case Proof::Result::kInconclusive:
      break;
  }
  return fmt::format("Inconclusive: {}. These runs could have shown --tolerance {}.", runs,
                     short_number(proof.smallest_share()));
}

std::string gap_text(double gap) {
  if (!std::isfinite(gap)) return "-";
  return fmt::format("{}{}", gap < 0 ? "" : "+", short_number(gap));
}

bool is_recommended(const Advice& advice, const Trial& trial) {
  return advice.chosen && advice.chosen->candidate.lane == trial.candidate.lane;
}

TableBlock tried_table(const Advice& advice) {
  TableBlock table;
  table.columns = {{"candidate", Align::kLeft},
                   {"in fp32", Align::kLeft},
                   {"loss scale"},
                   {"loss"},
                   {"gap"},
                   {"skips"},
                   {"verdict", Align::kLeft}};
  for (const Trial& trial : advice.tried) {
    const ScaleChoice& scale = trial.candidate.scale;
    const std::string name = (trial.candidate.is_preset() ? "plain " : "") + trial.candidate.format;
    table.rows.push_back({(is_recommended(advice, trial) ? "* " : "  ") + name,
                          trial.candidate.fp32.empty() ? "-" : layer_names(trial.candidate.fp32),
                          !scale.scales ? "-"
                                        : fmt::format("{}{}", scale_text(scale.start),
                                                      scale.dynamic ? ", dynamic" : ""),
                          short_number(trial.judgement.tail_loss), gap_text(trial.judgement.gap),
                          fmt::format("{}", trial.skips), verdict_text(trial)});
  }
  table.notes = {"loss: mean over the last steps. gap: loss minus fp32's. *: recommended."};
  return table;
}

}  // namespace

std::string answer_sentence(const Advice& advice, const AdviceFacts& facts) {
  switch (advice.answer) {
    case Advice::Answer::kFp32Broke:
      return "No answer: fp32's own loss is not finite at the end; mend the training first.";
    case Advice::Answer::kTooShort:
      return fmt::format("No answer: fp32 itself has not learned within {} steps; give --steps {}.",
                         advice.steps, 4 * advice.steps);
    case Advice::Answer::kFp32:
      return fmt::format("Train in fp32: of {} run here none trained as fp32 does{}.",
                         counted(static_cast<uint64_t>(facts.lanes), "candidate"),
                         advice.out_of_budget ? " (the --budget ended the search)" : "");
    case Advice::Answer::kPlain:
    case Advice::Answer::kExceptions:
      break;
  }
  if (facts.proof && facts.proof->result == Proof::Result::kFail) {
    return "No answer: what looked right on one seed was refuted on new ones.";
  }
  const Trial& trial = *advice.chosen;
  const RangeTable& ranges = *advice.ranges_of(trial.candidate.format);
  const std::string scale = scale_sentence(trial, ranges);
  const std::string& format = trial.candidate.format;
  if (advice.answer == Advice::Answer::kPlain) {
    return fmt::format("Nothing needs doing: under plain {} autocast {} trains as in fp32. {}",
                       format, facts.model, scale);
  }
  const std::vector<LayerInFp32>& fp32 = trial.candidate.fp32;
  const size_t others = advice.layers.size() - std::min(advice.layers.size(), fp32.size());
  if (fp32.empty()) {
    return fmt::format("All {} can use {}. {}", counted(advice.layers.size(), "layer"), format,
                       scale);
  }
  return fmt::format("Keep {} in fp32; {}. The other {} can use {}. {}", layer_names(fp32),
                     fp32.front().reason, counted(others, "layer"), format, scale);
}

std::string advice_text(const Advice& advice, const AdviceFacts& facts, const TextStyle& style) {
  const bool is_good =
      advice.chosen && !(facts.proof && facts.proof->result == Proof::Result::kFail);
  const std::string sentence = answer_sentence(advice, facts);
  Blocks blocks = {paragraph(sentence, is_good ? Tone::kGood : Tone::kBad,
                             std::min(sentence.size(), sentence.find_first_of(":;")))};
  if (advice.chosen) {
    const LaneJudgement& judged = advice.chosen->judgement;
    blocks.push_back(paragraph(
        fmt::format("Measured: loss {} after {} steps of one seed, {} {} fp32's (noise {}). It "
                    "rules out a large loss; it "
                    "does not prove equality.",
                    short_number(judged.tail_loss), advice.steps, two_digits(std::fabs(judged.gap)),
                    judged.gap < 0 ? "below" : "above", two_digits(noise(judged)))));
    if (facts.proof) blocks.push_back(paragraph(proof_sentence(*facts.proof)));
    if (!facts.no_proof.empty()) blocks.push_back(paragraph(facts.no_proof));
    blocks.push_back(paragraph("In PyTorch:"));
    blocks.push_back(verbatim(snippet(*advice.chosen)));
    for (const LayerInFp32& layer : advice.chosen->candidate.fp32) {
      const auto without = advice.without.find(layer.layer);
      blocks.push_back(paragraph(fmt::format(
          "{} in fp32: {}. {}", layer.layer.empty() ? "(no layer)" : layer.layer, layer.reason,
          without == advice.without.end()
              ? "Not run without it."
              : fmt::format("Run without it: {}.", verdict_text(without->second)))));
    }
  }
  if (advice.out_of_budget && advice.chosen && !advice.chosen->candidate.fp32.empty()) {
    blocks.push_back(paragraph("The --budget ended the search: fewer layers in fp32 may do."));
  }
  blocks.push_back(tried_table(advice));
  std::string runs =
      fmt::format("Run: {}, together with fp32 and its twin, {} steps each",
                  counted(static_cast<uint64_t>(facts.lanes), "candidate"), advice.steps);
  if (facts.captured_steps > 0) {
    runs += fmt::format(
        " (the {} captured ones, over and over: they show numerics, not "
        "generalisation)",
        facts.captured_steps);
  }
  if (facts.read_again > 0) {
    runs += fmt::format("; {} of {} replays read from {}", facts.read_again, facts.replays,
                        facts.folder);
  }
  blocks.push_back(paragraph(
      runs +
      ". Not tested: narrower optimizer state and masters, accumulators, fp8, several seeds."));
  std::string text = to_text(blocks, style);
  if (!facts.all) return text;
  for (const RangeTable& ranges : advice.ranges) text += "\n" + range_text(ranges);
  return text;
}

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
                       {"out_of_budget", advice.out_of_budget}};
  for (const Trial& trial : advice.tried) {
    const bool is_chosen = is_recommended(advice, trial);
    ordered_json one = {{"lane", trial.candidate.lane},
                        {"format", trial.candidate.format},
                        {"loss", number(trial.judgement.tail_loss)},
                        {"gap", number(trial.judgement.gap)},
                        {"noise", number(noise(trial.judgement))},
                        {"skipped_steps", trial.skips},
                        {"verdict", to_string(trial.judgement.verdict)},
                        {"passes", trial.passes()},
                        {"fp32", ordered_json::array()}};
    for (const LayerInFp32& layer : trial.candidate.fp32) {
      one["fp32"].push_back({{"layer", layer.layer},
                             {"reason", layer.reason},
                             {"measured", is_chosen && advice.without.contains(layer.layer)}});
    }
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
                     {"mean_gap", number(proof.mean)},
                     {"upper_bound", number(proof.smallest_shown())},
                     {"tolerance", number(proof.tolerance)},
                     {"fall", number(proof.fall)},
                     {"chaos", number(proof.chaos)},
                     {"seed_scatter", number(proof.seed_scatter)}};
  }
  for (const RangeTable& ranges : advice.ranges) {
    json["loss_scales"][ranges.format->name] = {{"lo_exponent", ranges.scales.lo},
                                                {"hi_exponent", ranges.scales.hi}};
  }
  return json.dump(2) + "\n";
}

}  // namespace lockstep
