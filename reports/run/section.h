// The sections of a report.
// A section is a file sections/NAME.cc that defines its row, NAME_section(), and its name in the
// list in section.cc.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "reports/run/report.h"
#include "reports/writers/block.h"
#include "reports/writers/text_writer.h"

namespace lockstep {

struct Section {
  std::string_view name, title;
  bool in_summary = false;                // also printed at the end of `replay`
  Blocks (*write)(const Report& report);  // no blocks: the section is left out
  bool leads = false;                     // the first one of a page, whatever the list's order
  bool only_html = false;                 // a picture; its table is too long for text and Markdown
};
std::span<const Section> sections();

// "0", "1", ...: the steps, as the x axis of a curve.
std::vector<std::string> step_labels(const Report& report);
// " (20 measured)"; empty if all steps were.
std::string measured_note(const Report& report);

struct WrittenSection {
  std::string_view name, title;
  Blocks blocks;
};
// All sections that say something, in the order of a page. `draws`: those that are only_html, too.
std::vector<WrittenSection> page_sections(const Report& report, bool draws);
// "lenet"; "60 steps, 5 lanes, run.h5".
std::string page_title(const Report& report);
std::string page_subtitle(const Report& report);
// What a writer needs, of whatever it is a report of.
struct ReportPage {
  std::string title, subtitle;
  std::vector<WrittenSection> sections;
};
ReportPage report_page(const Report& report, bool draws);
std::string page_text(const ReportPage& page, const TextStyle& style = {});

// The whole report, or only the sections that are `in_summary`, as text.
std::string report_text(const Report& report, bool summary_only = false,
                        const TextStyle& style = {});

}  // namespace lockstep
