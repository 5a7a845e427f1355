// PTX's names for the formats of factors.
// Vector files (emulation/accumulator/dot_vectors.h) and instruction names use them; the format
// table has other names.
#pragma once

#include <string_view>

namespace lockstep {

struct PtxType {
  std::string_view ptx, format;
};
inline constexpr PtxType kPtxTypes[] = {
    {"f16", "fp16"},      {"f32", "fp32"},      {"bf16", "bf16"},
    {"tf32", "tf32"},     {"e4m3", "fp8_e4m3"}, {"e5m2", "fp8_e5m2"},
    {"e3m2", "fp6_e3m2"}, {"e2m3", "fp6_e2m3"}, {"e2m1", "fp4_e2m1"}};

}  // namespace lockstep
