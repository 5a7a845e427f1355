// The first alias of these formats is torch's name.
#include "reports/pytorch/torch_dtype.h"

namespace lockstep {

std::string torch_dtype(const Format& format) {
  return "torch." + format.aliases.front();
}

std::string torch_dtype(const std::string& format) {
  return torch_dtype(find_format(format));
}

}  // namespace lockstep
