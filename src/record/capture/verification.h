// The result of `lockstep verify` for a capture: a small JSON file next to the capture, tied to it
// by its SHA-256, so that every later report of a replay can say whether the import was faithful. A
// run file keeps a copy of the result that existed when the run began.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

struct VerifiedGate {
  std::string name, subject, status, figure;
  // How much of the judgement did not rest on relative bounds, as in `figure`, by name: "tensors",
  // of these "by_floor", "by_chaos", "by_torch" and "by_terms"; "elements", of these "noise".
  // Empty: not known.
  std::map<std::string, int64_t> floor;
};
struct Verification {
  std::string sha256, lockstep_version, created_utc;
  bool passed = false;
  std::vector<VerifiedGate> gates;

  // No gate failed, but no step could be judged.
  bool is_inconclusive() const;
  std::string summary() const;  // "passed: V0 PASS, V1 PASS, ... (lockstep 0.1.0, 2026-...)"
};

std::string verification_path(const std::string& capture);  // CAPTURE.verify.json
std::string to_json(const Verification& verification);
// Nothing if the text is not a result, or is for a capture with another hash.
std::optional<Verification> verification_from_json(std::string_view json, std::string_view sha256);

// Throws: InputError when it cannot be written.
void write_verification(const std::string& capture, const Verification& verification);
// Nothing if there is no such file, or it is for another capture. Throws: InputError: it is
// damaged, or cannot be read.
std::optional<Verification> read_verification(const std::string& capture, std::string_view sha256);

}  // namespace lockstep
