// Charts as JSON for the page's script (reports/page/charts/).
// Safe inside <script type="application/json">: no "<" is left in it.
#pragma once

#include <string>

#include "reports/writers/chart.h"

namespace lockstep {

// Numbers have five significant digits; a value that is not finite is null. More x labels than
// kMostPoints are joined to as many equal parts: means of curves, extremes of bands; "joined" says
// how many.
std::string chart_json(const Chart& chart);

inline constexpr size_t kMostPoints = 600;

}  // namespace lockstep
