// The formats and their writers.
#include "reports/run/report_format.h"

#include <algorithm>

#include "reports/run/report_json.h"
#include "reports/run/section.h"
#include "reports/writers/html_page.h"
#include "reports/writers/markdown_page.h"

namespace lockstep {
namespace {

std::string as_text(const AdvisedReport& report, const TextStyle& style) {
  return report_text(report, /*summary_only=*/false, style);
}
std::string as_json(const AdvisedReport& report, const TextStyle&) {
  return report_json(report);
}
std::string as_html(const AdvisedReport& report, const TextStyle&) {
  return html_page(report_page(report, /*draws=*/true));
}
std::string as_markdown(const AdvisedReport& report, const TextStyle&) {
  return markdown_page(report_page(report, /*draws=*/false));
}

std::string page_as_text(const ReportPage& page, const TextStyle& style) {
  return page_text(page, style);
}
std::string page_as_html(const ReportPage& page, const TextStyle&) {
  return html_page(page);
}
std::string page_as_markdown(const ReportPage& page, const TextStyle&) {
  return markdown_page(page);
}

}  // namespace

std::span<const ReportFormat> report_formats() {
  constexpr auto kAll = ReportPictures::kAll, kNone = ReportPictures::kNone;
  static const std::vector<ReportFormat> formats = {
      {"text", kNone, {".txt"}, as_text, page_as_text},
      {"json", kAll, {".json"}, as_json},
      {"html", kAll, {".html", ".htm"}, as_html, page_as_html},
      {"markdown", kNone, {".md"}, as_markdown, page_as_markdown},
      {"csv", kAll, {".csv"}, nullptr},
  };
  return formats;
}

const ReportFormat* find_report_format(std::string_view name) {
  const auto found = std::ranges::find(report_formats(), name, &ReportFormat::name);
  return found == report_formats().end() ? nullptr : &*found;
}

const ReportFormat* report_format_of_file(std::string_view path) {
  for (const ReportFormat& format : report_formats()) {
    for (const std::string_view ending : format.endings) {
      if (path.ends_with(ending)) return &format;
    }
  }
  return nullptr;
}

std::string report_format_names() {
  std::string text;
  for (const ReportFormat& format : report_formats()) {
    const bool is_last = &format == &report_formats().back();
    text += (text.empty() ? "" : is_last ? " or " : ", ") + std::string(format.name);
  }
  return text;
}

}  // namespace lockstep
