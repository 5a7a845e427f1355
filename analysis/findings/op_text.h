// An op by its place in the network.
#pragma once

#include <string>

namespace lockstep {

// "fc1 linear"; outside of all modules a layer is named after its op: "sub", "sqrt_backward".
std::string op_text(const std::string& layer, const std::string& op);

}  // namespace lockstep
