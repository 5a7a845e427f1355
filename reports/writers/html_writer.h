// Blocks as HTML elements.
#pragma once

#include <string>
#include <string_view>

#include "reports/writers/block.h"

namespace lockstep {

struct HtmlStyle {
  bool has_charts = true;  // else the tables of charts are open
};

// Tables and charts get the ids SECTION-table-1, SECTION-chart-1, ...
std::string to_html(const Blocks& blocks, std::string_view section, const HtmlStyle& style = {});

}  // namespace lockstep
