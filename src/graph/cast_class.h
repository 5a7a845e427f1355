// The cast class of an op: how autocast treats it.
#pragma once

#include <cstdint>
#include <string_view>

namespace lockstep {

// How torch-like autocast treats an op. A policy file may move an op to another class.
enum class CastClass : uint8_t {
  kLowPrecision,  // operands are cast to the autocast format
  kFp32,          // operands are cast to FP32
  kPromote,       // operands are cast to the widest among them
  kFollow,        // runs in the formats of its operands (type promotion decides the output)
};
std::string_view to_string(CastClass cast_class);

}  // namespace lockstep
