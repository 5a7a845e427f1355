// Judges whether a target ended as it may. Runs one input, with the program's standard output and
// error caught, and checks what was thrown and written.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tests/fuzz/target.h"

namespace lockstep::fuzz {

enum class End { kAccepted, kRefused, kFinding };
struct Verdict {
  End end = End::kFinding;
  std::string message;  // of the refusal, or what was found
};
Verdict judge(const Target& target, std::string_view input, const Place& place);

// Throws: Finding if text for a terminal or a file holds what must not get there: control
// characters other than line ends, bytes that are not UTF-8, messages of libraries.
void check_text(std::string_view text, std::string_view what);

// Runs the program in this process, as src/cli/main.cc does, and checks all that it writes.
// Returns: standard output. Throws: InputError: exit code 2, with the message; Finding: another
// exit code than the documented ones, an internal error, or text that is not inert.
std::string run_program(const std::vector<std::string>& arguments, const Place& place);

}  // namespace lockstep::fuzz
