// The message for refused input, for tests of messages.
#pragma once

#include <string>
#include <string_view>

#include "src/core/error.h"
#include "src/core/text.h"

namespace lockstep::testing {

// The message of the InputError that `action` throws, or "" without an error.
template <typename Action>
std::string error_of(const Action& action) {
  try {
    action();
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

// The same, without its first line: all problems, one per line.
template <typename Action>
std::string problems_in(const Action& action) {
  try {
    action();
  } catch (const InputError& error) {
    return join(error.problems(), "\n");
  }
  return "";
}

inline bool has(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

}  // namespace lockstep::testing
