// THE table of the formats that a report can be written in.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "reports/run/section.h"
#include "reports/writers/text_writer.h"

namespace lockstep {

struct ReportFormat {
  std::string_view name;
  ReportPictures pictures;
  std::vector<std::string_view> endings;  // of the names of such files; the first is suggested
  // nullptr: one file does not hold a whole report (csv_writer.h).
  std::string (*write)(const AdvisedReport& report, const TextStyle& style);
  // The same of any page, e.g. of two runs; nullptr: it needs more than sections.
  std::string (*write_page)(const ReportPage& page, const TextStyle& style) = nullptr;
};
// The first one is the default.
std::span<const ReportFormat> report_formats();
// nullptr: there is none.
const ReportFormat* find_report_format(std::string_view name);
// By the ending of a file's name; nullptr: no format has it.
const ReportFormat* report_format_of_file(std::string_view path);
// "text, json, html, markdown or csv"
std::string report_format_names();

}  // namespace lockstep
