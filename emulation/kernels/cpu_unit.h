// Which low-precision units does this CPU have?
// One row per unit the `cpu` engine computes with, and which sums and conversions are whose. The
// CPU is asked (CPUID, XGETBV), and for AMX the operating system, too. The kernels are in cpu/.
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

// True when programs can use the unit here; otherwise says why not, when `why_not` is not null. For
// AMX the first call asks the operating system for permission to use tiles.
bool cpu_has(CpuUnit unit, std::string* why_not = nullptr);

// The unit whose instruction forms sums under this accumulator, or null: it is no unit's.
// FP32 sums by fused multiply-add are FMA's, of which the software kernels are made.
const CpuUnitInfo* cpu_unit_of(const Accumulator& accumulator);
// The unit that rounds so, or null.
const CpuUnitInfo* cpu_unit_of(const Format& format, Rounding rounding);

}  // namespace lockstep
