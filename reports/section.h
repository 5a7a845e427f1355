// Which parts does a report have, in which order?
// A section is one file and one line in the list in section.cc.
#pragma once

#include <span>
#include <string_view>

#include "reports/block.h"
#include "reports/report.h"

namespace lockstep {

struct Section {
  std::string_view name, title;
  bool in_summary;                        // also printed at the end of `replay`
  Blocks (*write)(const Report& report);  // no blocks: the section has nothing to say
};
std::span<const Section> sections();

Blocks capture_section(const Report& report);
Blocks verdict_section(const Report& report);
Blocks lanes_section(const Report& report);
Blocks loss_section(const Report& report);
Blocks gradients_section(const Report& report);
Blocks layers_section(const Report& report);
Blocks updates_section(const Report& report);
Blocks sums_section(const Report& report);
Blocks loss_scale_section(const Report& report);
Blocks provenance_section(const Report& report);

// The whole report, or only the sections that are `in_summary`, as text.
std::string report_text(const Report& report, bool summary_only = false);

}  // namespace lockstep
