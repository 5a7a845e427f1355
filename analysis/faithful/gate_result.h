// The result of a gate: a verdict with its figure and bound, and how much of it rested on floors.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

enum class GateStatus : uint8_t {
  kPass,
  kFail,
  kNotApplicable,  // the run had no scaler, no autocast, ...
  kNotRecorded,    // the capture lacks the data to compare with
};
std::string_view to_string(GateStatus status);  // "PASS", "FAIL", "n/a", "not recorded"

// How much of a gate's judgement rested on a floor: on an absolute bound larger than the relative
// one, or on what FP32 does not determine. Counted per tensor (a gradient, a weight) and
// verify step; V7 judges means over the steps.
struct FloorShare {
  int64_t tensors = 0;   // judged
  int64_t by_floor = 0;  // of these: the absolute part of the bound is the larger part
  int64_t by_chaos = 0;  // of these: the bound is what one ulp of the weights changes
  int64_t elements = 0;  // of these tensors
  int64_t noise = 0;     // of these elements: left out, see `noise` in docs/capture-file.md
  int64_t by_torch = 0;  // of the tensors: the bound is the error of PyTorch's own FP32
  int64_t by_terms = 0;  // of the tensors: the bound is what the order of so many terms explains

  void add(const FloorShare& other);
  // "judged by a floor: 3 of 18 by the absolute floor, ..."; "" if there is none.
  std::string text() const;
};

struct GateResult {
  std::string name = {};     // "V1"
  std::string subject = {};  // "FP64 replay against PyTorch's FP64"
  bool is_required = false;  // a capture is faithful only if this gate passed
  GateStatus status = GateStatus::kNotRecorded;
  std::string figure = {};                // the measured value, with its bound
  std::vector<std::string> details = {};  // where it failed
  FloorShare floor = {};
  double ratio = 0;  // V8: the worst value in units of its bound
};

}  // namespace lockstep
