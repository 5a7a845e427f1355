// A report as one self-contained HTML file: it opens from disk, loads nothing, and reads well
// without its script, which only sorts, filters and shows values under the pointer.
#pragma once

#include <string>

#include "reports/report.h"

namespace lockstep {

std::string html_page(const Report& report);

}  // namespace lockstep
