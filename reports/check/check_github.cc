// See check_github.h.
#include "reports/check/check_github.h"

#include <fmt/format.h>

#include <algorithm>

#include "reports/check/alarm_tables.h"
#include "reports/check/check_text.h"
#include "reports/words/source_place.h"
#include "src/core/counted.h"
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

std::string group_annotation(const AlarmGroup& group) {
  std::string message = group.first->sentence;
  if (group.count > 1) {
    message += fmt::format(" (and {} of {} in this lane)", counted(group.count - 1, "more number"),
                           group.subject);
  }
  return annotation("error", fmt::format("Lockstep: {} in {}", group.subject, group.lane), message,
                    group.first->source_line);
}

}  // namespace

std::string github_annotations(const CheckResult& result) {
  if (result.verdict == CheckVerdict::kError) return error_annotations(result.problems);
  constexpr std::string_view kMore = "see the job's summary";
  const std::vector<AlarmGroup> groups = group_alarms(result.alarms);
  if (groups.empty()) {
    const std::string_view kind = exit_code_of(result.verdict) == 0 ? "notice" : "warning";
    return annotation(kind, "Lockstep: " + std::string(to_string(result.verdict)),
                      check_headline(result));
  }
  const size_t shown = groups.size() <= kMostAnnotations ? groups.size() : kMostAnnotations - 1;
  std::string out;
  for (size_t i = 0; i < shown; ++i) out += group_annotation(groups[i]);
  size_t left_out = 0;
  for (size_t i = shown; i < groups.size(); ++i) left_out += groups[i].count;
  if (left_out > 0) {
    out += annotation("error", "Lockstep", fmt::format("+{} more, {}", left_out, kMore));
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
