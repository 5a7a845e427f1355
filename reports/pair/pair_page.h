// Two runs as sections, for every writer.
// A section is a file of this folder that defines its row, NAME_pair_section(), and its name in the
// list in pair_page.cc.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "analysis/report/report_pair.h"
#include "reports/run/section.h"

namespace lockstep {

struct PairSection {
  std::string_view name, title;
  Blocks (*write)(const ReportPair& pair);  // no blocks: the section is left out
};
std::span<const PairSection> pair_sections();
ReportPage pair_page(const ReportPair& pair);

}  // namespace lockstep
