// See check_text.h.
#include "reports/check/check_text.h"

#include <fmt/format.h>

#include <algorithm>

#include "reports/check/alarm_tables.h"
#include "reports/writers/number_text.h"
#include "src/core/text.h"

namespace lockstep {
namespace {

constexpr size_t kShownAlarms = 500;  // single ones, of a page

std::string draw_text(const CheckResult& result) {
  return runs_text(result.draw, result.runs);
}

Tone tone_of(const CheckResult& result) {
  const bool is_bad =
      result.verdict == CheckVerdict::kRegression || result.verdict == CheckVerdict::kError;
  if (is_bad) return Tone::kBad;
  return exit_code_of(result.verdict) == 0 ? Tone::kGood : Tone::kDoubtful;
}

// After a changed setting, the headline also names the first alarm that shows its effect.
std::string after_setting_text(const CheckResult& result) {
  if (result.alarms.front().finding != kSetting) return "";
  const auto is_effect = [](const Alarm& alarm) { return alarm.finding != kSetting; };
  const auto first = std::ranges::find_if(result.alarms, is_effect);
  return first == result.alarms.end() ? "" : ". First beyond its limit: " + first->sentence;
}

bool has_first_number(const CheckResult& result) {
  const auto is_effect = [](const Alarm& alarm) { return alarm.finding != kSetting; };
  const auto first = std::ranges::find_if(result.alarms, is_effect);
  return first != result.alarms.begin() && first != result.alarms.end() && first->finding.empty();
}

Blocks verdict_blocks(const CheckResult& result) {
  const std::string verdict = verdict_word(result);
  Blocks blocks = {
      paragraph(verdict + ": " + check_headline(result) + ".", tone_of(result), verdict.size())};
  if (!result.baseline_note.empty()) blocks.push_back(paragraph(result.baseline_note + "."));
  const auto number =
      std::ranges::find_if(result.alarms, [](const Alarm& alarm) { return alarm.finding.empty(); });
  if (number != result.alarms.end()) {
    // The headline names it where it leads, or follows a changed setting.
    const bool has_said = number == result.alarms.begin() || has_first_number(result);
    const std::string first =
        has_said ? "" : "The first number beyond its limit: " + number->sentence + ". ";
    blocks.push_back(paragraph(first + "The limit comes from " + number->limit_from + "."));
  }
  if (!result.first_difference.empty()) {
    blocks.push_back(paragraph("The first difference in bits: " + result.first_difference + "."));
  }
  add_list(blocks, "What changed since the baseline:", result.changes);
  // The headline has the first reason; alone, it is not said twice.
  const bool has_said_missing =
      result.verdict == CheckVerdict::kIncomplete && result.missing.size() == 1;
  if (!has_said_missing) add_list(blocks, "Missing:", result.missing);
  const bool has_said_why =
      result.verdict == CheckVerdict::kInconclusive && result.why_inconclusive.size() == 1;
  if (!has_said_why) add_list(blocks, "Not judged:", result.why_inconclusive);
  if (result.problems.size() > 1) add_list(blocks, "All problems:", result.problems);
  return blocks;
}

Blocks alarm_blocks(const CheckResult& result) {
  if (result.alarms.empty()) return {};
  const std::vector<AlarmGroup> groups = group_alarms(result.alarms);
  return {paragraph(fmt::format("{}, by lane and metric, the origin first:",
                                counted(result.alarms.size(), "alarm"))),
          table(group_table(groups))};
}

// "12 of to_zero and 3 of error in fp16".
std::string counts_text(const std::vector<Alarm>& numbers) {
  std::vector<std::string> parts;
  for (const AlarmGroup& group : group_alarms(numbers)) {
    parts.push_back(fmt::format("{} of {} in {}", group.count, group.subject, group.lane));
  }
  return join(parts, ", ");
}

Blocks improvement_blocks(const CheckResult& result) {
  if (result.improvements.empty()) return {};
  return {paragraph(fmt::format("{} better than in any of {}: {}.",
                                result.improvements.size() == 1
                                    ? "1 number is"
                                    : with_thousands(result.improvements.size()) + " numbers are",
                                draw_text(result), counts_text(result.improvements)))};
}

Blocks rest_blocks(const CheckResult& result) {
  Blocks blocks;
  std::vector<std::string> ignored;
  for (const Ignored& rule : result.ignored) {
    if (rule.alarms == 0) continue;
    ignored.push_back(fmt::format("{} until {}: {} ({})", counted(rule.alarms, "alarm"),
                                  rule.expires, rule.rule, rule.reason));
  }
  add_list(blocks, "Ignored by rule:", ignored);
  add_list(blocks, "Remarks:", result.remarks);
  if (result.shared_nonfinite > 0) {
    blocks.push_back(paragraph(fmt::format(
        "{} NaN or infinite values here and in the baseline: expected, and judged by their share.",
        result.shared_nonfinite == 1 ? std::string("One place has")
                                     : with_thousands(result.shared_nonfinite) + " places have")));
  }
  if (result.judged > 0) {
    blocks.push_back(paragraph(fmt::format(
        "{} of {} judged against {}. A run as good as these fails in at most {:g} of 100 checks.",
        counted(result.judged, "number"), counted(static_cast<uint64_t>(result.steps), "step"),
        draw_text(result), result.alpha * 100)));
  }
  return blocks;
}

void append(Blocks& blocks, Blocks more) {
  blocks.insert(blocks.end(), std::make_move_iterator(more.begin()),
                std::make_move_iterator(more.end()));
}

std::string subtitle_of(const CheckResult& result) {
  if (result.verdict == CheckVerdict::kError) return "not judged, because of an error";
  return fmt::format("{} judged in {}", counted(result.judged, "number"),
                     counted(static_cast<uint64_t>(result.steps), "step"));
}

std::string good_headline(const CheckResult& result) {
  switch (result.verdict) {
    case CheckVerdict::kIdentical:
      return "every bit equals the baseline's";
    case CheckVerdict::kWithinNoise:
      return fmt::format("{} within the limits from {}",
                         result.judged == 1
                             ? "the number lies"
                             : fmt::format("all {} numbers lie", with_thousands(result.judged)),
                         draw_text(result));
    case CheckVerdict::kImproved:
      return fmt::format("nothing is worse, {} better than in any of {}",
                         counted(result.improvements.size(), "number"), draw_text(result));
    default:
      return "";
  }
}

// What a verdict that passes does not cover; "": nothing.
std::string uncovered_text(const CheckResult& result) {
  std::string text;
  if (const size_t lost = result.sites - result.sites_matched; lost > 0) {
    text += fmt::format("; {} of the baseline's {} have no counterpart and are not judged", lost,
                        counted(result.sites, "site"));
  }
  size_t ignored = 0;
  for (const Ignored& rule : result.ignored) ignored += rule.alarms;
  if (ignored > 0) text += fmt::format("; {} ignored by rule", counted(ignored, "alarm"));
  return text;
}

}  // namespace

std::string verdict_word(const CheckResult& result) {
  std::string word(to_string(result.verdict));
  std::ranges::transform(word, word.begin(),
                         [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  return word;
}

std::string check_headline(const CheckResult& result) {
  if (exit_code_of(result.verdict) == 0) return good_headline(result) + uncovered_text(result);
  switch (result.verdict) {
    case CheckVerdict::kError:
      return result.problems.front();
    case CheckVerdict::kRegression:
      return result.alarms.front().sentence + after_setting_text(result);
    case CheckVerdict::kIncomplete:
      return "nothing is worse, but a part of the baseline is missing: " + result.missing.front();
    default:
      break;
  }
  return result.why_inconclusive.empty() ? "no number could be judged"
                                         : result.why_inconclusive.front();
}

std::string check_text(const CheckResult& result, const TextStyle& style) {
  Blocks blocks = verdict_blocks(result);
  append(blocks, alarm_blocks(result));
  append(blocks, improvement_blocks(result));
  append(blocks, rest_blocks(result));
  return heading_text(fmt::format("{} against {}", result.run, result.baseline)) +
         to_text(blocks, style);
}

ReportPage check_page(const CheckResult& result) {
  ReportPage page{.title = fmt::format("{} against {}", result.run, result.baseline),
                  .subtitle = subtitle_of(result),
                  .sections = {}};
  const auto add = [&](std::string_view name, std::string_view title, Blocks blocks) {
    if (!blocks.empty()) page.sections.push_back({name, title, std::move(blocks)});
  };
  add("verdict", "Verdict", verdict_blocks(result));
  add("groups", "Alarms by lane and metric", alarm_blocks(result));
  if (!result.alarms.empty()) {
    add("alarms", "Every alarm", {table(alarm_table(result.alarms, 0, kShownAlarms))});
  }
  Blocks better = improvement_blocks(result);
  if (!better.empty()) {
    better.push_back(table(alarm_table(result.improvements, 0, kShownAlarms)));
  }
  add("improvements", "Better than the baseline", std::move(better));
  add("remarks", "Remarks", rest_blocks(result));
  return page;
}

}  // namespace lockstep
