// The low-precision units that this CPU has. One row per unit that the `cpu` engine computes with,
// and the sums and conversions of each. Detection uses CPUID and XGETBV; AMX also needs the
// operating system's permission. The kernels are in cpu/.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "emulation/accumulator/accumulator.h"
#include "emulation/format/rounding.h"

namespace lockstep {

enum class CpuUnit : uint8_t {
  kFma,         // VFMADD*PS with AVX2
  kF16c,        // VCVTPS2PH, VCVTPH2PS
  kAvx512Bf16,  // VDPBF16PS, VCVTNEPS2BF16 on 512-bit registers
  kAvx512Fp16,  // VFMADD*PH, VMULPH, VADDPH on 512-bit registers
  kAmxBf16,     // TDPBF16PS
  kAmxFp16,     // TDPFP16PS
};

struct CpuUnitInfo {
  CpuUnit unit;
  std::string_view name;          // "AVX512-BF16"
  std::string_view instructions;  // "VDPBF16PS, VCVTNEPS2BF16"
};
std::span<const CpuUnitInfo> cpu_units();
const CpuUnitInfo& cpu_unit_info(CpuUnit unit);

// True if programs can use the unit here. Otherwise `why_not`, when not null, receives the reason.
// For AMX, the first call requests the operating system's permission to use tiles.
bool cpu_has(CpuUnit unit, std::string* why_not = nullptr);

// The unit whose instruction forms sums under this accumulator, or null if no unit does.
// FP32 sums by fused multiply-add belong to FMA, which the software kernels use.
const CpuUnitInfo* cpu_unit_of(const Accumulator& accumulator);
// The unit that rounds this way, or null.
const CpuUnitInfo* cpu_unit_of(const Format& format, Rounding rounding);

}  // namespace lockstep
