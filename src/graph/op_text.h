// How an op is named in text: by its layer and itself.
#pragma once

#include <string>
#include <string_view>

namespace lockstep {

// "fc1 linear"; outside of all modules a layer is named after its op: "sub", "sqrt_backward".
inline std::string op_text(const std::string& layer, const std::string& op) {
  const std::string_view forward = std::string_view(op).substr(0, op.find("_backward"));
  return layer == forward ? op : layer + " " + op;
}

// Whether a node outside of all modules is named after a call of the capture itself: those of an
// autograd.Function ("lockstep_capture.custom_gradient.default").
inline bool is_named_by_capture(const std::string& layer, const std::string& torch_op) {
  return torch_op.starts_with("lockstep_capture." + layer + ".");
}

}  // namespace lockstep
