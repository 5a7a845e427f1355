// See check_text.h.
#include "reports/check_text.h"

#include <fmt/format.h>

#include <algorithm>

#include "reports/number_text.h"
#include "src/core/text.h"

namespace lockstep {
namespace {

constexpr size_t kShownAlarms = 12, kShownLines = 20;

std::string upper(std::string_view text) {
  std::string out(text);
  std::ranges::transform(out, out.begin(),
                         [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  return out;
}

std::string draw_text(const CheckResult& result) {
  return fmt::format("{} {}", result.runs,
                     result.draw == Draw::kSame ? "runs from weights moved by one ulp"
                                                : "runs from other seeds");
}

void add_list(Blocks& blocks, const std::string& title, const std::vector<std::string>& lines) {
  if (lines.empty()) return;
  blocks.push_back(paragraph(title));
  std::vector<std::string> shown(lines.begin(),
                                 lines.begin() + static_cast<std::ptrdiff_t>(
                                                     std::min(lines.size(), kShownLines)));
  if (lines.size() > shown.size()) shown.push_back(fmt::format("+{} more", lines.size() - shown.size()));
  blocks.push_back(verbatim(join(shown, "\n")));
}

std::vector<std::string> sentences(const std::vector<Alarm>& alarms) {
  std::vector<std::string> lines;
  for (size_t i = 0; i < std::min(alarms.size(), kShownAlarms); ++i) {
    lines.push_back(alarms[i].sentence);
  }
  if (alarms.size() > kShownAlarms) lines.push_back(fmt::format("+{} more", alarms.size() - kShownAlarms));
  return lines;
}

}  // namespace

std::string check_headline(const CheckResult& result) {
  switch (result.verdict) {
    case CheckVerdict::kIdentical:
      return "every bit is the baseline's";
    case CheckVerdict::kWithinNoise:
      return fmt::format("{} numbers lie within what {} do", with_thousands(result.judged),
                         draw_text(result));
    case CheckVerdict::kImproved:
      return fmt::format("nothing is worse, {} better than in {}",
                         counted(result.improvements.size(), "number"), draw_text(result));
    case CheckVerdict::kRegression:
      return result.alarms.front().sentence;
    case CheckVerdict::kIncomplete:
      return "nothing is worse, but a part of the baseline is missing: " + result.missing.front();
    case CheckVerdict::kInconclusive:
      break;
  }
  return result.why_inconclusive.empty() ? "no number could be judged"
                                         : result.why_inconclusive.front();
}

Blocks check_blocks(const CheckResult& result) {
  Blocks blocks;
  const Tone tone = result.verdict == CheckVerdict::kRegression ? Tone::kBad
                    : exit_code_of(result.verdict) == 0         ? Tone::kGood
                                                                : Tone::kDoubtful;
  const std::string verdict = upper(to_string(result.verdict));
  blocks.push_back(paragraph(verdict + ": " + check_headline(result) + ".", tone, verdict.size()));
  if (result.verdict == CheckVerdict::kRegression) {
    const Alarm& first = result.alarms.front();
    blocks.push_back(paragraph("The limit is from " + first.limit_from + "."));
  }
  if (!result.first_difference.empty()) {
    blocks.push_back(paragraph("First other bits: " + result.first_difference + "."));
  }
  add_list(blocks, "What changed since the baseline:", result.changes);
  if (result.alarms.size() > 1) {
    add_list(blocks, fmt::format("All {}, the origin first:", counted(result.alarms.size(), "alarm")),
             sentences(result.alarms));
  }
  add_list(blocks, "Missing:", result.missing);
  add_list(blocks, "Not judged:", result.why_inconclusive);
  add_list(blocks, "Better than the baseline:", sentences(result.improvements));
  std::vector<std::string> ignored;
  for (const Ignored& rule : result.ignored) {
    ignored.push_back(fmt::format("{} until {}: {} ({})", rule.rule, rule.expires,
                                  counted(rule.alarms, "alarm"), rule.reason));
  }
  add_list(blocks, "Ignored by rule:", ignored);
  add_list(blocks, "Remarks:", result.remarks);
  if (result.shared_nonfinite > 0) {
    blocks.push_back(paragraph(fmt::format(
        "{} with NaN or infinite values in the baseline have some here, too.",
        counted(result.shared_nonfinite, "site"))));
  }
  if (result.judged > 0) {
    blocks.push_back(paragraph(fmt::format(
        "{} numbers of {} judged against {}; a run as good as these fails in {} of 100.",
        with_thousands(result.judged), counted(static_cast<uint64_t>(result.steps), "step"),
        draw_text(result), fmt::format("{:g}", result.alpha * 100))));
  }
  return blocks;
}

std::string check_text(const CheckResult& result, const TextStyle& style) {
  return heading_text(fmt::format("{} against {}", result.run, result.baseline)) +
         to_text(check_blocks(result), style);
}

}  // namespace lockstep
