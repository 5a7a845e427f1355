// The format in which a lane holds the values of each site.
// Read from its program; the optimizer's sites are not in a program, the lane adds them.
#pragma once

#include <string>
#include <vector>

#include "src/lower/program.h"

namespace lockstep {

// By site id: the format's name; "" where the program has no such site.
std::vector<std::string> site_formats(const Program& program, size_t site_count);

}  // namespace lockstep
