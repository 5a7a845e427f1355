// Blocks as HTML elements.
#pragma once

#include <string>
#include <string_view>

#include "reports/block.h"

namespace lockstep {

// Tables and curves get the ids SECTION-table-1, SECTION-curves-1, ...
std::string to_html(const Blocks& blocks, std::string_view section);

}  // namespace lockstep
