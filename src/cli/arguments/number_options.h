// The numbers of optimizers that have an option of their own. `--optimizer-args` takes all.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>

namespace lockstep {

inline constexpr std::string_view kNumberOptions[] = {"lr",    "momentum", "beta1",
                                                      "beta2", "eps",      "weight_decay"};

// "--weight-decay" for weight_decay.
inline std::string option_name(std::string_view number) {
  std::string name = "--" + std::string(number);
  std::replace(name.begin(), name.end(), '_', '-');
  return name;
}

}  // namespace lockstep
