// How long the sums of gradients are, which says what their order can change.
#pragma once

#include <map>
#include <string>

#include "src/capture/capture.h"

namespace lockstep {

// How many terms the sums of each parameter's gradient have, at most: one for each element of a
// result of the nodes that read the parameter, or views of it, but for those along its own rows or
// columns.
std::map<std::string, double> terms_of_gradients(const Capture& capture);

}  // namespace lockstep
