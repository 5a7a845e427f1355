// The sections of a report.
// A section is a file sections/NAME.cc that defines its row, NAME_section(), and its name in the
// list in section.cc.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "analysis/report/report.h"
#include "reports/writers/page.h"
#include "reports/writers/text_writer.h"

namespace lockstep {

// A report and the answer of `recommend`, where that wrote it: the candidates are its lanes.
struct AdvisedReport {
  const Report& report;
  Blocks answer = {}, search = {};  // empty: any other report

  AdvisedReport(const Report& of) : report(of) {}  // NOLINT: every report, without an answer
  AdvisedReport(const Report& of, Blocks answer_of_it, Blocks search_of_it)
      : report(of), answer(std::move(answer_of_it)), search(std::move(search_of_it)) {}
  operator const Report&() const { return report; }  // NOLINT: for sections that need no answer
};

struct Section {
  std::string_view name, title;
  bool in_summary = false;  // also printed at the end of `replay`
  // Returns: no blocks, and the section is left out. Most take a `const Report&`.
  std::function<Blocks(const AdvisedReport& report)> write;
  bool leads = false;      // the first one of a page, whatever the list's order
  bool only_html = false;  // a picture; its table is too long for text and Markdown
};
std::span<const Section> sections();

// Recorded by `recommend`: its lanes are policies that no file holds, and its own command repeats
// them.
bool is_of_search(const Report& report);
// "0", "1", ...: the steps, as the x axis of a curve.
std::vector<std::string> step_labels(const Report& report);
// " (20 measured)"; empty if all steps were.
std::string measured_note(const Report& report);

// All sections that say something, in the order of a page. `draws`: those that are only_html, too.
std::vector<WrittenSection> page_sections(const AdvisedReport& report, bool draws);
// "lenet"; "60 steps, 5 lanes, run.h5".
std::string page_title(const Report& report);
std::string page_subtitle(const Report& report);
ReportPage report_page(const AdvisedReport& report, bool draws);

// The whole report, or only the sections that are `in_summary`, as text.
std::string report_text(const AdvisedReport& report, bool summary_only = false,
                        const TextStyle& style = {});

}  // namespace lockstep
