// See advice_text.h.
#include "reports/advice/advice_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>

#include "analysis/findings/finding_kinds.h"
#include "reports/advice/advice_charts.h"
#include "reports/advice/advice_tables.h"
#include "reports/pytorch/pytorch_module.h"
#include "reports/pytorch/pytorch_scaling.h"
#include "reports/pytorch/torch_dtype.h"
#include "reports/words/range_text.h"
#include "reports/writers/number_text.h"
#include "src/core/text.h"
#include "src/policy/find_policy.h"

namespace lockstep {
namespace {

constexpr double kGradScalerStart = 65536;
constexpr std::string_view kDevice = "cuda";  // of the presets that candidates extend

std::string memory_words(const std::string& choice, const std::string& format) {
  return fmt::format(fmt::runtime(find_memory_choice(choice).help), format);
}

std::string capitalised(std::string text) {
  if (!text.empty()) text[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(text[0])));
  return text;
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
        "{} with {} octave to spare: GradScaler's 65536 lies in that octave and no step "
        "overflowed, "
        "keep it dynamic.",
        between, kHeadroomOctaves);
  }
  return fmt::format(
      "{}: GradScaler's 65536 starts too high and settled after {} skipped, keep it dynamic.",
      between, counted(static_cast<uint64_t>(trial.skips), "step"));
}

// What to paste. Layers in FP32, and scales that GradScaler needs arguments for, come from the
// module that --emit writes.
std::string snippet(const Trial& trial, const AdviceFacts& facts) {
  const Candidate& candidate = trial.candidate;
  const std::string& module = facts.module;
  std::string kind = facts.emitted.empty() ? "pytorch" : facts.emitted;
  if (facts.emitted.empty() && !candidate.narrow.empty()) {
    const Policy policy = parse_policy(policy_text(candidate), "the policy");
    const std::vector<std::string> kinds = kinds_that_scale(policy.scaling);
    if (!kinds.empty()) kind = kinds.front();
  }
  const ScaleChoice& scale = candidate.scale;
  const bool plain = candidate.fp32.empty() && candidate.narrow.empty() && !candidate.tf32 &&
                     candidate.memory.empty() && !is_tf32(candidate.format) &&
                     (!scale.scales || (scale.dynamic && scale.start == kGradScalerStart));
  std::string text =
      plain ? ""
            : fmt::format("  {}  # written by --emit {} {}.py\n  model = amp.apply(model)\n",
                          import_line(module), kind, module);
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

std::string proof_sentence(const Proof& proof, bool of_orders) {
  const std::string_view seeds =
      of_orders ? "orders of the captured batches that the search did not see (the start is the "
                  "same in all)"
                : "new seeds";
  if (proof.reference_broke) {
    return fmt::format("No proof: fp32 itself broke in the seed after {} new ones.", proof.seeds());
  }
  if (!std::isfinite(proof.mean)) {
    return fmt::format("Refuted: it broke in one of {} {}.", proof.seeds(), seeds);
  }
  const std::string what = proof.tolerance > proof.share * proof.fall
                               ? "what one ulp does"
                               : fmt::format("{:g}% of the fall of fp32's loss", 100 * proof.share);
  const std::string runs = fmt::format(
      "mean gap {} over {} {}, at most {} at {:.0f}% confidence; tolerated: {} ({})",
      short_number(proof.mean), proof.seeds(), seeds, short_number(proof.smallest_shown()),
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

std::string relative(double part, double whole) {
  return fmt::format("{:.2f}", part / whole);
}

// "Keep a in fp32; it reaches 1.1e5. The other 32 layers can use fp16."
std::string layers_sentence(const Advice& advice) {
  const Candidate& candidate = advice.chosen->candidate;
  const std::vector<KeptLayer>& fp32 = candidate.fp32;
  const size_t layers = advice.network.layers.size();
  std::string text;
  if (fp32.empty()) {
    text = fmt::format("All {} can use {}.", counted(layers, "layer"), candidate.format);
  } else {
    text = fmt::format("Keep {} in fp32; {}. The other {} can use {}.", layer_names(fp32),
                       fp32.front().reason,
                       counted(layers - std::min(layers, fp32.size()), "layer"), candidate.format);
  }
  if (candidate.tf32) text += " The layers in fp32 can use tf32 for their products.";
  if (!candidate.narrow.empty()) {
    const size_t kept = candidate.not_narrow.size();
    const size_t linear = advice.network.linear.size();
    std::vector<KeptLayer> linear_in_fp32;
    for (const std::string& layer : advice.network.linear) {
      if (has_layer(fp32, layer)) linear_in_fp32.push_back({layer, ""});
    }
    const size_t in_fp32 = linear_in_fp32.size();
    text += kept + in_fp32 == 0
                ? fmt::format(" All linear layers can use {}.", candidate.narrow)
                : fmt::format(" Of {} linear layers {} can use {}, not {}.", linear,
                              linear - kept - in_fp32, candidate.narrow,
                              layer_names(joined(candidate.not_narrow, linear_in_fp32)));
  }
  for (const std::string& choice : candidate.memory) {
    text += " " + capitalised(memory_words(choice, candidate.format)) + " trains as well.";
  }
  return text;
}

// A lane that skipped steps is compared with FP32 after as many updates (analysis/run/outcome.h).
std::string measured_sentence(const Advice& advice) {
  const Trial& trial = *advice.chosen;
  const LaneJudgement& judged = trial.judgement;
  const std::string after = trial.skips > 0
                                ? fmt::format(" after as many updates ({} skipped)",
                                              counted(static_cast<uint64_t>(trial.skips), "step"))
                                : "";
  return fmt::format(
      "Measured: loss {} after {} of one seed, {} {} fp32's{} (noise {}). It rules out a large "
      "loss; it does not prove equality.",
      short_number(judged.tail_loss), counted(static_cast<uint64_t>(advice.steps), "step"),
      two_digits(std::fabs(judged.gap)), judged.gap < 0 ? "below" : "above", after,
      two_digits(noise(judged)));
}

// GradScaler's own numbers: what its growth costs, and the floor that it does not have.
std::string scaler_sentence(const Advice& advice) {
  const Candidate& candidate = advice.chosen->candidate;
  const RangeTable& ranges = *advice.ranges_of(candidate.format);
  const int64_t interval = autocast_policy(candidate.format).loss_scale.growth_interval;
  std::string text = fmt::format(
      "Growth interval {}: once settled, the scale grows until a step overflows, so about one step "
      "in {} is skipped.",
      interval, interval);
  if (ranges.scales.lo > kMinScaleExponent) {
    text +=
        fmt::format(" GradScaler has no floor: below 2^{} the gradients of {} vanish.",
                    ranges.scales.lo, ranges.lo_layer.empty() ? "some layers" : ranges.lo_layer);
  }
  return text;
}

// "Estimated on h100: a step takes 0.42 of fp32's time and 0.55 of its memory, ..."
std::string cost_sentence(const Advice& advice) {
  const Trial& chosen = *advice.chosen;
  const int64_t fp32_memory = total_bytes(advice.network.memory);
  std::string text = fmt::format(
      "Estimated on {}: a step takes {} of fp32's time and {} of its memory", advice.gpu->name,
      relative(chosen.cost.seconds, advice.fp32_cost.seconds),
      relative(static_cast<double>(total_bytes(chosen.memory)), static_cast<double>(fp32_memory)));
  const Trial& plain = *advice.plain;
  if (chosen.candidate.lane == plain.candidate.lane) return text + ".";
  text += fmt::format(", {} of the time of plain {} autocast",
                      relative(chosen.cost.seconds, plain.cost.seconds), plain.candidate.format);
  if (!plain.passes()) text += ", which does not train";
  return text + ".";
}

std::string kept_sentence(const Advice& advice, const KeptLayer& kept, const std::string& format) {
  const auto without = advice.without.find(kept.layer);
  std::string text = fmt::format("{} in {}: {}.", kept.layer.empty() ? "(no layer)" : kept.layer,
                                 format, kept.reason);
  if (without != advice.without.end()) {
    text += fmt::format(" Run without it: {}.", verdict_text(without->second));
  } else if (!advice.network.unaligned.contains(kept.layer) ||
             has_layer(advice.chosen->candidate.fp32, kept.layer)) {
    text += " Not run without it.";
  }
  return text;
}

// "fp8: 24 of 25 linear layers train in it (gap 0.002); a step takes 0.82 of the time of plain bf16
// autocast on h100."
std::string narrow_sentence(const Advice& advice, const NarrowOutcome& outcome) {
  if (!outcome.passed) return fmt::format("{}: not used; {}.", outcome.format, outcome.why_not);
  const Trial& trial = *outcome.passed;
  const bool is_narrow = find_narrow_format(outcome.format) != nullptr;
  const bool is_chosen =
      is_narrow ? advice.chosen->candidate.narrow == outcome.format : advice.chosen->candidate.tf32;
  const std::string what = !is_narrow
                               ? "the products of the fp32 layers train in it"
                               : fmt::format("{} of {} train in it", outcome.linear,
                                             counted(advice.network.linear.size(), "linear layer"));
  std::string text =
      fmt::format("{}: {} (gap {}); a step takes {} of the time of plain {} autocast on {}",
                  outcome.format, what, two_digits(trial.judgement.gap),
                  relative(trial.cost.seconds, advice.plain->cost.seconds),
                  advice.plain->candidate.format, advice.gpu->name);
  if (!is_chosen) {
    text += outcome.is_faster ? ", and another format less"
                              : ": casts and memory traffic cost more than the products gain";
  }
  return text + ".";
}

std::string memory_sentence(const Advice& advice, const MemoryOutcome& outcome) {
  const Trial& trial = outcome.trial;
  const double saved = 1 - static_cast<double>(total_bytes(trial.memory)) /
                               static_cast<double>(total_bytes(advice.memory_without));
  std::string text =
      fmt::format("{}: {}", capitalised(memory_words(outcome.choice, trial.candidate.format)),
                  verdict_text(trial));
  if (std::isfinite(trial.judgement.gap)) {
    text += fmt::format(" (gap {})", two_digits(trial.judgement.gap));
  }
  text += fmt::format("; {:.0f}% less memory than without.", 100 * saved);
  if (outcome.loses && trial.passes()) {
    const FindingContext context{*outcome.loses, advice.network.sites, false, trial.steps};
    text += fmt::format(" Not used: {}. So short a run does not show that in its loss.",
                        row_of(outcome.loses->kind).sentence(context));
  }
  return text;
}

// The noise floors that a proof's gap is compared with.
std::string floors(const Proof& proof) {
  return fmt::format(
      "Noise: fp32's own loss differs by {} from seed to seed; one ulp moves it by {}; the "
      "candidate's gap scatters by {}. A step that broke in none of {} seeds may still break in up "
      "to {:.0f}% of others.",
      two_digits(proof.seed_scatter), two_digits(proof.chaos), two_digits(proof.gap_scatter),
      proof.seeds(), 100 * proof.most_breaking());
}

// "9 layers that were measured alone with a rank correlation of 0.87".
std::string ranks(const RankCorrelation& correlation, std::string_view what) {
  return fmt::format("{} {} that were measured alone with a rank correlation of {:.2f}",
                     correlation.ranked, what, correlation.value);
}

std::string correlation_sentence(const SensitivityTable& table) {
  if (!table.is_measured) return "";
  std::vector<std::string> parts;
  if (std::isfinite(table.of_layers.value)) {
    parts.push_back(ranks(table.of_layers, "layers"));
    if (table.measured_top_third) {
      parts.back() += fmt::format(", below {}: the top third was measured", kLeastRankCorrelation);
    }
  }
  if (std::isfinite(table.of_roles.value))
    parts.push_back(ranks(table.of_roles, "roles in layers"));
  return parts.empty() ? "" : "The first-order score ranks " + join(parts, "; ") + ".";
}

// What is missing, and how to get it.
std::string too_short_sentence(const Advice& advice) {
  return fmt::format(
      "Too short to judge how training ends: fp32 itself has not learned within {} (give --steps "
      "{}, or steps in which the loss falls).",
      counted(static_cast<uint64_t>(advice.steps), "step"), 4 * advice.steps);
}

// Why no candidate passed where training is not judged: what is wrong with plain autocast.
std::string disagreement_sentence(const Advice& advice) {
  const Trial& plain = *advice.plain;
  const std::string what = fmt::format("Nor is a candidate's loss fp32's in these steps: plain {}",
                                       plain.candidate.format);
  if (plain.findings.empty()) {
    return fmt::format(
        "{}'s is {} {} (noise {}).", what, two_digits(std::fabs(plain.judgement.gap)),
        plain.judgement.gap < 0 ? "below" : "above", two_digits(noise(plain.judgement)));
  }
  const Finding& finding = plain.findings.front();
  const FindingContext context{finding, advice.network.sites, plain.candidate.scale.scales,
                               plain.steps};
  return fmt::format("{}: {}.", what, row_of(finding.kind).sentence(context));
}

// What was run, and what was not.
std::string runs_sentence(const Advice& advice, const AdviceFacts& facts) {
  std::string runs = fmt::format("Run: {}, together with fp32 and its twin, {} each",
                                 counted(static_cast<uint64_t>(facts.lanes), "candidate"),
                                 counted(static_cast<uint64_t>(advice.steps), "step"));
  if (facts.captured_steps > 0) {
    runs += fmt::format(
        " (the {} captured ones, over and over: they show numerics, not "
        "generalisation)",
        facts.captured_steps);
  }
  if (facts.measured > 0) {
    runs += fmt::format("; {} with a single layer in the format",
                        counted(static_cast<uint64_t>(facts.measured), "short run"));
  }
  if (facts.read_again > 0) {
    runs += fmt::format("; {} of {} read from {}", facts.read_again,
                        counted(static_cast<uint64_t>(facts.replays), "replay"), facts.folder);
  }
  std::vector<std::string> not_tested = facts.not_tested;
  if (!facts.proof) not_tested.emplace_back("other seeds (--prove)");
  return fmt::format("{}. Not tested: {}.", runs, join(not_tested, ", "));
}

}  // namespace

std::string answer_sentence(const Advice& advice, const AdviceFacts& facts) {
  switch (advice.answer) {
    case Advice::Answer::kFp32Broke:
      return "No answer: fp32's own loss is not finite at the end; fix the fp32 training first.";
    case Advice::Answer::kTooShort:
      return fmt::format("{} {}", too_short_sentence(advice), disagreement_sentence(advice));
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
  if (advice.is_too_short) {
    const std::string policy = advice.answer == Advice::Answer::kPlain
                                   ? fmt::format("Under plain {} autocast", format)
                                   : layers_sentence(advice) + " Then";
    return fmt::format(
        "{} {} the loss is fp32's within noise in these steps, without a fault that breaks a "
        "training. {}",
        too_short_sentence(advice), policy, scale);
  }
  if (advice.answer == Advice::Answer::kPlain) {
    return fmt::format("Nothing needs doing: under plain {} autocast {} trains as in fp32. {}",
                       format, facts.model, scale);
  }
  return layers_sentence(advice) + " " + scale;
}

Blocks advice_blocks(const Advice& advice, const AdviceFacts& facts) {
  const bool is_good =
      advice.chosen && !(facts.proof && facts.proof->result == Proof::Result::kFail);
  const std::string sentence = answer_sentence(advice, facts);
  Blocks blocks = {paragraph(sentence, is_good ? Tone::kGood : Tone::kBad,
                             std::min(sentence.size(), sentence.find_first_of(":;")))};
  if (advice.chosen) {
    blocks.push_back(paragraph(measured_sentence(advice)));
    if (advice.chosen->candidate.scale.dynamic) {
      blocks.push_back(paragraph(scaler_sentence(advice)));
    }
    blocks.push_back(paragraph(cost_sentence(advice)));
    if (facts.proof) blocks.push_back(paragraph(proof_sentence(*facts.proof, facts.proof_orders)));
    if (facts.proof && facts.proof->seeds() > 1) blocks.push_back(paragraph(floors(*facts.proof)));
    if (!facts.no_proof.empty()) blocks.push_back(paragraph(facts.no_proof));
    blocks.push_back(paragraph("In PyTorch:"));
    blocks.push_back(verbatim(snippet(*advice.chosen, facts)));
    for (const KeptLayer& layer : advice.chosen->candidate.fp32) {
      blocks.push_back(paragraph(kept_sentence(advice, layer, "fp32")));
    }
    for (const KeptLayer& layer : advice.chosen->candidate.not_narrow) {
      blocks.push_back(paragraph(kept_sentence(advice, layer, advice.chosen->candidate.format)));
    }
  }
  for (const NarrowOutcome& outcome : advice.narrow) {
    blocks.push_back(paragraph(narrow_sentence(advice, outcome)));
  }
  for (const MemoryOutcome& outcome : advice.memory) {
    blocks.push_back(paragraph(memory_sentence(advice, outcome)));
  }
  if (advice.memory_alone) {
    blocks.push_back(paragraph("Together these do not train as fp32 does, so one is recommended."));
  }
  if (advice.out_of_budget && advice.chosen) {
    blocks.push_back(paragraph("The --budget ended the search: a cheaper policy may do."));
  }
  blocks.push_back(tried_chart(advice));
  const std::string correlation = correlation_sentence(advice.sensitivity);
  if (!correlation.empty()) blocks.push_back(paragraph(correlation));
  blocks.push_back(paragraph(runs_sentence(advice, facts)));
  return blocks;
}

Blocks search_blocks(const Advice& advice) {
  Blocks blocks;
  if (!advice.frontier.empty()) blocks.push_back(frontier_chart(advice));
  if (!advice.sensitivity.layers.empty()) {
    blocks.push_back(layer_chart(advice.sensitivity));
    blocks.push_back(role_chart(advice.sensitivity));
    if (advice.sensitivity.is_measured) {
      blocks.push_back(measured_role_table(advice.sensitivity));
    }
    blocks.push_back(noise_table(advice.sensitivity));
  }
  return blocks;
}

std::string advice_text(const Advice& advice, const AdviceFacts& facts, const TextStyle& style) {
  std::string text = to_text(advice_blocks(advice, facts), style);
  if (!facts.all) return text;
  text += "\n" + to_text(search_blocks(advice), style);
  for (const RangeTable& ranges : advice.ranges) text += "\n" + range_text(ranges);
  return text;
}

std::string scale_courses_text(const std::vector<ScaleCourse>& courses) {
  const auto words = [](const SettledScale& scale) {
    return fmt::format("2^{} to 2^{}, mostly 2^{}, {} skipped", scale.lo, scale.hi, scale.mode,
                       counted(static_cast<uint64_t>(scale.skips), "step"));
  };
  Blocks blocks;
  for (const ScaleCourse& course : courses) {
    blocks.push_back(paragraph(fmt::format(
        "Loss scale of {} in the second half of the run: {}; predicted from fp32's gradients: {}.",
        course.lane, words(course.recorded), words(course.predicted))));
  }
  return blocks.empty() ? "" : to_text(blocks) + "\n";
}

}  // namespace lockstep
