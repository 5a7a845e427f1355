// Blocks as plain text.
#pragma once

#include <string>
#include <string_view>

#include "reports/writers/page.h"

namespace lockstep {

inline constexpr int kTextWidth = 100;

// Prose never exceeds kTextWidth columns, which are easier to read; tables use the whole width.
struct TextStyle {
  int width = kTextWidth;
  bool colour = false;
};

// Columns a terminal needs for UTF-8 text: its code points; Lockstep prints no wide ones.
int display_width(std::string_view text);
// The text cut into lines of at most `width` columns at spaces; a longer word gets a line of its
// own.
std::string wrap(std::string_view text, int width, std::string_view indent = "");

// A shell command over several lines: broken at spaces outside quotes, but not between an option
// and its value, with a backslash at their ends.
std::string broken_command(const std::string& command);

// Where the first escape sequence of to_text's colours begins; npos: there is none.
size_t find_colour(std::string_view text);

std::string heading_text(std::string_view title);
std::string to_text(const Blocks& blocks, const TextStyle& style = {});
std::string page_text(const ReportPage& page, const TextStyle& style = {});

}  // namespace lockstep
