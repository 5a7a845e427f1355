// lockstep verify CAPTURE: checks that the import is faithful. One line per gate, and the exit
// code.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "analysis/faithful/gate_result.h"
#include "src/capture/capture.h"
#include "src/record/capture/verification.h"

namespace lockstep {

struct VerifiedCapture {
  std::vector<GateResult> gates;
  Verification result;
};
// Runs the gates; calls `done` with each. Throws: as verify_capture.
VerifiedCapture verify_gates(Capture capture, const std::function<void(const GateResult&)>& done);
// Writes the result next to the capture; returns why not, or "".
std::string store_verification(const std::string& path, const Verification& result);

// The result also goes to a file next to the capture, and to `json` unless that is empty.
// Throws: InputError: not a capture, damaged, ...
int verify_capture_file(const std::string& path, const std::string& json);

}  // namespace lockstep
