// Blocks as Markdown that GitHub renders. Text cannot become markup: all of it is escaped.
#pragma once

#include <string>
#include <string_view>

#include "reports/writers/block.h"

namespace lockstep {

// Text between backticks is code; everything else is shown as it is written. Nothing in it becomes
// markup, a mention (@name) or a reference (#1).
std::string markdown_text(std::string_view text);
// Tables of many rows are collapsed.
std::string to_markdown(const Blocks& blocks);

}  // namespace lockstep
