// The terminal: its width and colour, and how text is shown on it. Names and texts of files are of
// unknown origin; printed by these functions they cannot control a terminal.
#pragma once

#include <string_view>

#include "reports/writers/text_writer.h"

namespace lockstep {

// The columns of the terminal at a file descriptor; kTextWidth if it is none.
int terminal_width(int descriptor);

// For text on standard output. A terminal has its own width, and colour unless the environment has
// NO_COLOR (no-color.org) or TERM=dumb; a file or a pipe has kTextWidth columns without colour.
TextStyle output_style();

// Text of several lines on standard output, each printable(); only the text writer's colours stay.
void print_text(std::string_view text);
// One line on standard output, whatever its names hold.
void print_line(std::string_view line);
// One line on standard error, after "lockstep: ".
void print_note(std::string_view line);

}  // namespace lockstep
