// How wide is the terminal, and does it show colour?
#pragma once

#include "reports/text_writer.h"

namespace lockstep {

// The columns of the terminal at a file descriptor; kTextWidth if it is none.
int terminal_width(int descriptor);

// For text on standard output. A terminal has its own width, and colour unless the environment has
// NO_COLOR (no-color.org) or TERM=dumb; a file or a pipe has kTextWidth columns without colour.
TextStyle output_style();

}  // namespace lockstep
