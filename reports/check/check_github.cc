// See check_github.h.
#include "reports/check/check_github.h"

#include <fmt/format.h>

#include <algorithm>

#include "analysis/check/alarm_groups.h"
#include "analysis/check/alarm_sentence.h"
#include "reports/check/check_text.h"
#include "reports/words/source_place.h"
#include "src/core/text.h"

namespace lockstep {
namespace {

constexpr size_t kMostMessageBytes = 1000;

// What would end the line or, in a property, the property. printable() has spelled out line ends.
std::string escaped(std::string_view text, bool in_property) {
  std::string out;
  for (const char c : printable(text, kMostMessageBytes)) {
    const bool is_special = c == '%' || (in_property && (c == ':' || c == ','));
    out += is_special ? fmt::format("%{:02X}", static_cast<unsigned char>(c)) : std::string(1, c);
  }
  return out;
}

std::string annotation(std::string_view kind, std::string_view title, std::string_view message,
                       std::string_view source_line = "") {
  std::string properties = "title=" + escaped(title, /*in_property=*/true);
  if (const auto place = source_place(source_line)) {
    properties = fmt::format("file={},line={},{}", escaped(place->file, /*in_property=*/true),
                             place->line, properties);
  }
  return fmt::format("::{} {}::{}\n", kind, properties, escaped(message, /*in_property=*/false));
}

std::string error_annotations(const std::vector<std::string>& problems) {
  constexpr std::string_view kTitle = "Lockstep: not checked";
  const size_t shown = problems.size() <= kMostAnnotations ? problems.size() : kMostAnnotations - 1;
  std::string out;
  for (size_t i = 0; i < shown; ++i) out += annotation("error", kTitle, problems[i]);
  if (shown < problems.size()) {
    out += annotation("error", kTitle, fmt::format("+{} more problems", problems.size() - shown));
  }
  return out;
}

std::string cause_annotation(const AlarmCause& cause) {
  const Alarm& alarm = *cause.first;
  return annotation("error", fmt::format("Lockstep: {} in {}", alarm_subject(alarm), alarm.lane),
                    alarm.sentence + following_text(cause), alarm.marked_line());
}

}  // namespace

std::string github_annotations(const CheckResult& result) {
  if (result.verdict == CheckVerdict::kError) return error_annotations(result.problems);
  constexpr std::string_view kMore = "see the job's summary";
  const std::vector<AlarmCause> causes = causes_of(result.alarms);
  if (causes.empty()) {
    const std::string_view kind = exit_code_of(result.verdict) == 0 ? "notice" : "warning";
    return annotation(kind, "Lockstep: " + std::string(to_string(result.verdict)),
                      check_headline(result));
  }
  const size_t shown = causes.size() <= kMostAnnotations ? causes.size() : kMostAnnotations - 1;
  std::string out;
  for (size_t i = 0; i < shown; ++i) out += cause_annotation(causes[i]);
  if (shown < causes.size()) {
    out +=
        annotation("error", "Lockstep", fmt::format("+{} more, {}", causes.size() - shown, kMore));
  }
  return out;
}

std::string summary_that_fits(std::string_view markdown, size_t used) {
  constexpr std::string_view kCut = "\n\nThe rest does not fit into a job's summary.\n";
  const size_t room = kMostSummaryBytes - std::min(kMostSummaryBytes, used);
  if (markdown.size() <= room) return std::string(markdown);
  if (room <= kCut.size()) return "";
  const size_t end = markdown.rfind('\n', room - kCut.size());
  if (end == std::string_view::npos) return "";
  return std::string(markdown.substr(0, end)) + std::string(kCut);
}

}  // namespace lockstep
