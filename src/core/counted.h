// A number of things in words.
#pragma once

#include <string>
#include <string_view>

#include "src/core/text.h"

namespace lockstep {

// "1 lane", "1 000 lanes": the noun takes an s unless the count is 1.
inline std::string counted(unsigned long long count, std::string_view noun) {
  return with_thousands(count) + " " + std::string(noun) + (count == 1 ? "" : "s");
}

}  // namespace lockstep
