// The tables of a report as CSV (RFC 4180), one file each, the first row with the columns' names.
// Numbers have all digits, shares are 0..1, what was not measured is empty. Notes and prose are
// left out.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "reports/writers/page.h"

namespace lockstep {

struct CsvTable {
  std::string name;  // "layers-pure-fp16": fit for a file, different from all others
  std::string text;
};
// Named by their section and what distinguishes them in it: a lane, else its subject; the data of a
// chart also by its kind: "loss-curves".
std::vector<CsvTable> csv_tables(const std::vector<WrittenSection>& sections);

// Lines end in CR LF. A cell is quoted where RFC 4180 requires it. Text that a spreadsheet would
// run as a formula begins with an apostrophe; what would control a terminal is spelled out, \u001b.
std::string csv_text(std::span<const std::vector<std::string>> rows);
std::string csv_cell(const std::string& cell);
// Letters, digits and "._@-" stay; everything else becomes '_'.
std::string csv_file_name(std::string_view name);

}  // namespace lockstep
