// See fix_text.h.
#include "reports/advice/fix_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "analysis/candidates/policy_edit.h"
#include "analysis/findings/finding_kinds.h"
#include "analysis/search/proof.h"
#include "reports/pytorch/pytorch_casts.h"
#include "reports/words/tried_text.h"
#include "reports/writers/json_text.h"
#include "reports/writers/number_text.h"
#include "src/core/text.h"
#include "src/policy/find_policy.h"
#include "src/train/run_option_rows.h"

namespace lockstep {
namespace {

using nlohmann::ordered_json;

std::string loss_of(const Trial& trial) {
  const double loss = trial.judgement.tail_loss;
  return std::isfinite(loss) ? short_number(loss) : "NaN";
}

std::string gap_text(const Trial& trial) {
  const double gap = trial.judgement.gap;
  if (!std::isfinite(gap)) return "-";
  return fmt::format("{}{}", gap < 0 ? "" : "+", short_number(gap));
}

// The findings that the trial still has: "overflow, underflow".
std::string findings_text(const Trial& trial) {
  constexpr size_t kShown = 3;
  std::vector<std::string> names;
  for (const Finding& finding : trial.findings) {
    const std::string name(row_of(finding.kind).name);
    if (std::ranges::count(names, name) == 0) names.push_back(name);
  }
  if (names.empty()) return "none";
  const size_t more = names.size() - std::min(names.size(), kShown);
  names.resize(names.size() - more);
  return join(names, ", ") + (more == 0 ? "" : fmt::format(" and {} more", more));
}

std::string verdict_of(const FixTrial& one) {
  if (!one.refused.empty()) return "cannot be run";
  switch (one.grade) {
    case FixGrade::kTolerance:
      return "fixed";
    case FixGrade::kNoise:
      return "fixed, within noise";
    case FixGrade::kNo:
      break;
  }
  if (one.gone && is_refuted(one.trial, one.every_step)) return "wrong at equal weights";
  const bool gone = one.gone && one.trial.findings.empty();
  return std::string(to_string(one.trial.judgement.verdict)) + (gone ? ", finding gone" : "");
}

TableBlock tried_edits(const Fix& fix) {
  TableBlock table;
  table.columns = {{"tried", Align::kLeft},
                   {"loss"},
                   {"gap"},
                   {"result", Align::kLeft},
                   {"findings left", Align::kLeft}};
  table.rows.push_back({"  as it is", loss_of(fix.before), gap_text(fix.before),
                        std::string(to_string(fix.before.judgement.verdict)),
                        findings_text(fix.before)});
  for (size_t i = 0; i < fix.tried.size(); ++i) {
    const FixTrial& one = fix.tried[i];
    const bool ran = one.refused.empty();
    table.rows.push_back({(static_cast<int>(i) == fix.chosen ? "* " : "  ") + edits_text(one.edits),
                          ran ? loss_of(one.trial) : "-", ran ? gap_text(one.trial) : "-",
                          verdict_of(one), ran ? findings_text(one.trial) : "-"});
  }
  table.notes = {
      "loss: mean over the last steps. gap: loss minus fp32's. *: the fix; those after it "
      "were not needed."};
  return table;
}

// The edits of the fix in PyTorch's words, and changes that a policy cannot hold.
std::vector<std::string> pytorch_lines(const FixTrial& one, const FixFacts& facts) {
  std::vector<std::string> lines;
  for (const RemedyEdit& edit : one.edits) {
    if (!edit.pytorch.empty() && !edit.changes_run()) lines.push_back(edit.pytorch);
  }
  const Policy before = parse_policy(facts.toml, "lane.toml");
  if (!is_model_cast(before)) return lines;
  const Policy after = parse_policy(edited_policy(facts.toml, "fix", one.edits), "fix.toml");
  if (!is_model_cast(after)) return lines;  // "torch.autocast instead of a model cast to 16 bits"
  const Graph& step = one.scene->step;
  for (std::string& line : cast_lines(step, moved_casts(step, one.scene->sites, before, after))) {
    lines.push_back(std::move(line));
  }
  return lines;
}

// "--change eps=0.0001", "--rewrite eps:n12=0.0001": options of a replay with the fix.
std::string run_options_of(const std::vector<RemedyEdit>& edits, bool is_capture) {
  std::vector<std::string> words;
  for (const RemedyEdit& edit : edits) {
    const auto add = [&](std::string_view option, const std::string& value) {
      words.push_back(fmt::format("{} {}", option, value));
    };
    if (!edit.rewrites.empty()) {
      add(option_name(&RunOptions::rewrites), join(edit.rewrites, ","));
    }
    if (!edit.changes.empty()) {
      const bool clips = edit.changes.contains("clip_norm");
      if (is_capture) {
        add(option_name(&RunOptions::loop_changes), hyper_values_text(edit.changes));
      } else if (clips) {
        add(option_name(&RunOptions::clip_norm), fmt::format("{}", edit.changes.at("clip_norm")));
      } else {
        add("--optimizer-args", hyper_values_text(edit.changes));
      }
    }
  }
  return join(words, " ");
}

ordered_json equal_json(const EqualStep& equal) {
  return {{"loss", json_number(equal.loss)},
          {"reference_loss", json_number(equal.of_reference)},
          {"is_wrong", equal.is_wrong() || equal.not_finite >= 0}};
}

ordered_json trial_json(const Trial& trial) {
  ordered_json kinds = ordered_json::array();
  for (const Finding& finding : trial.findings) kinds.push_back(row_of(finding.kind).name);
  return {{"loss", json_number(trial.judgement.tail_loss)},
          {"gap", json_number(trial.judgement.gap)},
          {"verdict", to_string(trial.judgement.verdict)},
          {"reference_loss", json_number(trial.reference_loss)},
          {"reference_fall", json_number(trial.reference_fall)},
          {"chaos", json_number(trial.judgement.chaos)},
          {"batch_noise", json_number(trial.judgement.batch_noise)},
          {"tolerance", json_number(tolerance_of(trial))},
          {"skipped_steps", trial.skips},
          {"equal_weights", equal_json(trial.equal)},
          {"findings", kinds}};
}

}  // namespace

std::string fix_sentence(const Fix& fix, const FixFacts& facts) {
  const std::string reference = short_number(fix.before.reference_loss);
  switch (fix.answer) {
    case Fix::Answer::kFp32Broke:
      return "No answer: fp32's own loss is not finite at the end; fix the fp32 training first.";
    case Fix::Answer::kNothingWrong:
      if (fix.before.judgement.verdict == Verdict::kTooShort) {
        return fmt::format(
            "Nothing to fix: {} has no finding; but fp32 itself has not learned within {}, so its "
            "loss says little.",
            facts.lane, counted(static_cast<uint64_t>(fix.before.steps), "step"));
      }
      return fmt::format(
          "Nothing to fix: {} trains as fp32 does, without a finding: loss {}, fp32 {}.",
          facts.lane, loss_of(fix.before), reference);
    case Fix::Answer::kNoFinding:
      return fmt::format(
          "No answer: {} trains worse than fp32 (loss {}, fp32 {}), but no finding says where.",
          facts.lane, loss_of(fix.before), reference);
    case Fix::Answer::kNothingHelped:
      return fmt::format("Not fixed: of {} tried none removes the fault{}: {}.",
                         counted(fix.tried.size(), "change"),
                         fix.out_of_budget ? " (the --budget ended the search)" : "",
                         fix.before_sentence);
    case Fix::Answer::kFixed:
      break;
  }
  const FixTrial& one = fix.fix();
  const std::string what =
      one.edits.size() == 1 ? "removes the fault" : "together remove the fault";
  // A lane that skipped steps is compared with FP32 after as many updates (analysis/run/outcome.h).
  const LaneJudgement& judged = one.trial.judgement;
  const bool has_learned = judged.verdict != Verdict::kTooShort;
  const std::string numbers = fmt::format(
      "({}): loss {} with the fix, {} without, fp32 {}", fix.before_sentence, loss_of(one.trial),
      loss_of(fix.before), short_number(judged.tail_loss - judged.gap));
  if (!has_learned) {
    return fmt::format("Finding removed: {} {}, which has not learned in these steps.",
                       edits_text(one.edits), numbers);
  }
  return fmt::format("Fixed: {} {} {}.", edits_text(one.edits), what, numbers);
}

std::string fix_text(const Fix& fix, const FixFacts& facts, const TextStyle& style) {
  const bool fixed = fix.answer == Fix::Answer::kFixed;
  const bool good = (fixed || fix.answer == Fix::Answer::kNothingWrong) &&
                    fix.before.judgement.verdict != Verdict::kTooShort;
  const std::string sentence = fix_sentence(fix, facts);
  Blocks blocks = {paragraph(sentence, good ? Tone::kGood : Tone::kBad, sentence.find(':'))};
  if (fixed) {
    const FixTrial& one = fix.fix();
    const LaneJudgement& judged = one.trial.judgement;
    blocks.push_back(paragraph(fmt::format(
        "Measured over {} steps of one seed: {} {} fp32's loss; tolerated: {} ({}).",
        one.trial.steps, two_digits(std::fabs(judged.gap)), judged.gap < 0 ? "below" : "above",
        two_digits(tolerance_of(one.trial)),
        one.grade == FixGrade::kTolerance
            ? fmt::format("{:g}% of the fall of fp32's loss, or what one ulp does",
                          100 * kToleratedShare)
            : fmt::format("{:g}% of the fall of fp32's loss; but within this run's noise, {}",
                          100 * kToleratedShare,
                          two_digits(std::max(judged.batch_noise, judged.chaos_bound))))));
    if (one.every_step.step >= 0) {
      blocks.push_back(paragraph(fmt::format(
          "Losses at the end say little here, so it was run at equal weights: of {}, step {} "
          "differs most: loss {}, fp32 {}.",
          counted(static_cast<uint64_t>(one.trial.steps), "step"), one.every_step.step,
          short_number(one.every_step.loss), short_number(one.every_step.of_reference))));
    }
    const std::string lines = added_lines(one.edits);
    if (!lines.empty()) {
      blocks.push_back(paragraph("Lines to add to the policy (-o FILE.toml writes all of it):"));
      std::string indented;
      for (const std::string& line : split(lines, '\n')) {
        indented += line.empty() ? "\n" : "  " + line + "\n";
      }
      while (indented.ends_with("\n\n")) indented.pop_back();
      blocks.push_back(verbatim(indented));
    }
    const std::string options = run_options_of(one.edits, facts.is_capture);
    if (!options.empty()) {
      blocks.push_back(paragraph("A change of the training itself, fp32 included; of a replay:"));
      blocks.push_back(verbatim("  " + options + "\n"));
    }
    const std::vector<std::string> pytorch = pytorch_lines(one, facts);
    if (!pytorch.empty()) {
      blocks.push_back(paragraph("In PyTorch:"));
      blocks.push_back(verbatim("  " + join(pytorch, "\n  ") + "\n"));
    }
  }
  if (!fix.tried.empty()) blocks.push_back(tried_edits(fix));
  for (const FixTrial& one : fix.tried) {
    if (!one.refused.empty()) {
      blocks.push_back(
          paragraph(fmt::format("Cannot be run: {}: {}", edits_text(one.edits), one.refused)));
    }
  }
  const std::vector<std::string> words = untested_remedies(fix);
  if (!words.empty()) {
    blocks.push_back(paragraph(
        "Untested, because no key of a policy, option or rewrite of this graph does it: " +
        join(words, "; ") + "."));
  }
  if (fix.before.judgement.verdict == Verdict::kTooShort) {
    blocks.push_back(paragraph(fmt::format(
        "fp32 itself has not learned within {} steps, so the losses say little; give --steps {}.",
        fix.before.steps, 4 * fix.before.steps)));
  }
  std::string runs =
      fmt::format("Run: {}, together with fp32 and its twin, {} steps each",
                  counted(static_cast<uint64_t>(facts.lanes), "lane"), fix.before.steps);
  if (facts.read_again > 0) {
    runs += fmt::format("; {} of {} replays read from {}", facts.read_again, facts.replays,
                        facts.folder);
  }
  blocks.push_back(paragraph(runs + ". Not tested: several seeds."));
  return to_text(blocks, style);
}

std::string fix_json(const Fix& fix, const FixFacts& facts) {
  constexpr std::string_view kAnswers[] = {"fixed", "nothing_wrong", "no_finding", "nothing_helped",
                                           "fp32_broke"};
  constexpr std::string_view kGrades[] = {"no", "noise", "tolerance"};
  ordered_json json = {{"format", "lockstep-fix"},
                       {"format_version", 1},
                       {"model", facts.model},
                       {"lane", facts.lane},
                       {"answer", kAnswers[static_cast<size_t>(fix.answer)]},
                       {"sentence", fix_sentence(fix, facts)},
                       {"finding", fix.before_sentence},
                       {"steps", fix.before.steps},
                       {"out_of_budget", fix.out_of_budget},
                       {"before", trial_json(fix.before)},
                       {"tried", ordered_json::array()},
                       {"untested", untested_remedies(fix)}};
  if (fix.chosen >= 0) {
    json["fix"] = fix.chosen;
    json["pytorch"] = pytorch_lines(fix.fix(), facts);
  }
  for (const FixTrial& one : fix.tried) {
    ordered_json row = {{"edits", ordered_json::array()},
                        {"round", one.round},
                        {"gone", one.gone},
                        {"grade", kGrades[static_cast<size_t>(one.grade)]}};
    for (const RemedyEdit& edit : one.edits) {
      ordered_json entry = {{"words", edit.words}, {"toml", edit.toml}};
      if (!edit.pytorch.empty()) entry["pytorch"] = edit.pytorch;
      if (!edit.rewrites.empty()) entry["rewrites"] = edit.rewrites;
      if (!edit.changes.empty()) entry["changes"] = edit.changes;
      row["edits"].push_back(entry);
    }
    if (one.refused.empty()) {
      row.update(trial_json(one.trial));
      if (one.every_step.step >= 0 || one.every_step.not_finite >= 0) {
        row["worst_step_at_equal_weights"] = equal_json(one.every_step);
      }
    } else {
      row["refused"] = one.refused;
    }
    json["tried"].push_back(row);
  }
  return json.dump(2) + "\n";
}

}  // namespace lockstep
