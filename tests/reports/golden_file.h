// Golden files of reports: tests/golden/NAME. LOCKSTEP_REWRITE_GOLDEN=1 rewrites them.
#pragma once

#include <string>

namespace lockstep::testing {

// The golden text, which is `text` itself where golden files are rewritten.
std::string golden_text(const std::string& name, const std::string& text);

inline bool holds(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace lockstep::testing
