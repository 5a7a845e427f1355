// The output of a sandboxed child as one text, for tests with little output.
#pragma once

#include <string>

#include "src/record/hdf5/sandbox.h"

namespace lockstep::testing {

inline std::string sandbox_text(const SandboxLimits& limits,
                                const std::function<void(const SandboxWrite& write)>& work) {
  std::string text;
  Sandbox child(limits, [&](const SandboxRead&, const SandboxWrite& write) { work(write); });
  char next = 0;
  while (child.read(&next, 1) == 1) text += next;
  child.finish();
  return text;
}

}  // namespace lockstep::testing
