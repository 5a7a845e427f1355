#include "analysis/findings/op_text.h"

#include <string_view>

namespace lockstep {

std::string op_text(const std::string& layer, const std::string& op) {
  const std::string_view forward = std::string_view(op).substr(0, op.find("_backward"));
  return layer == forward ? op : layer + " " + op;
}

}  // namespace lockstep
