// The output of a sandboxed child as one text, for tests with little output.
#pragma once

#include <string>

#include "src/record/capture/sandbox.h"

namespace lockstep::testing {

inline std::string sandbox_text(const SandboxLimits& limits,
                                const std::function<void(const SandboxWrite& write)>& work) {
  std::string text;
  run_sandboxed(limits, work, [&](const SandboxRead& read) {
    char next = 0;
    while (read(&next, 1) == 1) text += next;
  });
  return text;
}

}  // namespace lockstep::testing
