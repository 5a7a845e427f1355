// The sections of a report.
// A section is a file sections/NAME.cc that defines its row, NAME_section(), and its name in the
// list in section.cc.
#pragma once

#include <span>
#include <string_view>

#include "reports/block.h"
#include "reports/report.h"
#include "reports/text_writer.h"

namespace lockstep {

struct Section {
  std::string_view name, title;
  bool in_summary;                        // also printed at the end of `replay`
  Blocks (*write)(const Report& report);  // no blocks: the section is left out
};
std::span<const Section> sections();

// The whole report, or only the sections that are `in_summary`, as text.
std::string report_text(const Report& report, bool summary_only = false,
                        const TextStyle& style = {});

}  // namespace lockstep
