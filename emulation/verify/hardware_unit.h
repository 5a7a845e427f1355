// A hardware unit that can be compared with its software model on the running machine. `lockstep
// verify --hardware` runs every row of hardware_units.h: the unit and its model get the same
// operands, edge cases and seeded random ones, and must give the same bits. NaN compares as NaN,
// except where the hardware has one rule for its bits (VDPBF16PS, tensor cores). A plain table: add
// a unit by adding a row. Knows nothing of lanes or of text tables.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace lockstep {

struct VerifyOptions {
  uint64_t cases = 10'000'000;       // random cases per unit, in addition to edge cases
  uint64_t seed = 1;                 // of the random cases
  uint64_t gpu_cases = 100'000'000;  // the same for units of GPUs, which check their own results
  std::string vectors = {};  // a file with the columns of mma_vectors.csv for GPU units, or ""
  // Called from time to time, from any thread but never from two at once; may be empty.
  std::function<void(uint64_t done, uint64_t total)> progress = {};
};

struct UnitResult {
  uint64_t edge_cases = 0;
  uint64_t random_cases = 0;
  uint64_t mismatches = 0;
  std::string first_mismatch;  // operands, the unit's bits, the model's bits; the first in case
                               // order, for any number of threads; "" without mismatches
  std::string note;            // a remark for the table, or ""
  uint64_t cases() const { return edge_cases + random_cases; }
};

struct HardwareUnit {
  std::string_view group;        // the table it is in: kCpuGroup or kNvidiaGroup
  std::string_view unit;         // "AVX512-BF16", "wgmma fp16"
  std::string_view instruction;  // "VDPBF16PS"
  std::string_view model;        // compared with it: an accumulator's or a function's name
  // True if this machine can run it. Otherwise `why_not`, when not null, receives the reason.
  bool (*available)(std::string* why_not);
  // Requires: available. Throws: std::runtime_error if the hardware fails to run.
  UnitResult (*run)(const VerifyOptions& options);
};

inline constexpr std::string_view kCpuGroup = "CPU";
inline constexpr std::string_view kNvidiaGroup = "NVIDIA GPUs";

}  // namespace lockstep
