// A report as one self-contained HTML file: it opens from disk, loads nothing, and reads well
// without its scripts, which sort, filter and draw. Names in it come from other people's models, so
// a content security policy allows these scripts by their hashes, and nothing else to run or load.
#pragma once

#include <string>
#include <string_view>

#include "reports/writers/page.h"

namespace lockstep {

// The script that draws charts; empty in a build without npm (cmake/page_charts.cmake).
std::string_view charts_script();

// With an empty script, the tables of charts are open and the page says that charts are missing.
std::string html_page(const ReportPage& page, std::string_view charts = charts_script());

}  // namespace lockstep
