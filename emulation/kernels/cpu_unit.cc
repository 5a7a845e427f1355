// CPUID's feature bits (Intel SDM vol. 2A, CPUID, leaves 1 and 7), and whether the operating system
// keeps the registers (XCR0).
#include "emulation/kernels/cpu_unit.h"

#include <array>

#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace lockstep {
namespace {

constexpr CpuUnitInfo kUnits[] = {
    {CpuUnit::kFma, "FMA", "VFMADD231PS"},
    {CpuUnit::kF16c, "F16C", "VCVTPS2PH, VCVTPH2PS"},
    {CpuUnit::kAvx512Bf16, "AVX512-BF16", "VDPBF16PS, VCVTNEPS2BF16"},
    {CpuUnit::kAvx512Fp16, "AVX512-FP16", "VFMADD231PH, VMULPH, VADDPH"},
    {CpuUnit::kAmxBf16, "AMX-BF16", "TDPBF16PS"},
    {CpuUnit::kAmxFp16, "AMX-FP16", "TDPFP16PS"},
};

// Sums that a unit forms: by their rule, the format of the running sum and that of the factors
// (null: any).
struct UnitSum {
  AccumulatorKind kind;
  const char* format;
  const char* factors = nullptr;
  CpuUnit unit;
};
constexpr UnitSum kSums[] = {
    {.kind = AccumulatorKind::kFusedChain, .format = "fp32", .unit = CpuUnit::kFma},
    {.kind = AccumulatorKind::kFusedChain, .format = "fp16", .unit = CpuUnit::kAvx512Fp16},
    {.kind = AccumulatorKind::kBf16Pairs,
     .format = "fp32",
     .factors = "bf16",
     .unit = CpuUnit::kAvx512Bf16},
    {.kind = AccumulatorKind::kAmxTile,
     .format = "fp32",
     .factors = "bf16",
     .unit = CpuUnit::kAmxBf16},
    {.kind = AccumulatorKind::kAmxTile,
     .format = "fp32",
     .factors = "fp16",
     .unit = CpuUnit::kAmxFp16},
};

struct UnitConversion {
  const char* format;
  CpuUnit unit;
  bool directed;  // also toward zero, up and down; to nearest even always
};
constexpr UnitConversion kConversions[] = {
    {.format = "fp16", .unit = CpuUnit::kF16c, .directed = true},
    {.format = "bf16+flush_in", .unit = CpuUnit::kAvx512Bf16, .directed = false},
};

struct Registers {
  uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
};
Registers cpuid(uint32_t leaf, uint32_t subleaf) {
  Registers r;
  __get_cpuid_count(leaf, subleaf, &r.eax, &r.ebx, &r.ecx, &r.edx);  // zeros where there is none
  return r;
}
bool bit(uint32_t word, int index) {
  return (word >> index & 1) != 0;
}

// Which register sets the operating system saves, as bits of XCR0.
uint64_t saved_registers() {
  constexpr int kOsxsave = 27;
  if (!bit(cpuid(1, 0).ecx, kOsxsave)) return 0;
  uint32_t low, high;
  __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return uint64_t{high} << 32 | low;
}
constexpr uint64_t kAvxState = 0x6, kAvx512State = 0xe6, kTileState = 0x60000;

// Linux grants tiles to processes that request them.
bool may_use_tiles() {
#if defined(__linux__)
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XTILEDATA
  static const bool granted = ::syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  return granted;
#else
  return false;
#endif
}

// "" when the unit can be used.
std::string obstacle(const CpuUnitInfo& info) {
  const Registers leaf1 = cpuid(1, 0), leaf7 = cpuid(7, 0), leaf7_1 = cpuid(7, 1);
  const uint64_t saved = saved_registers();
  const auto saves = [&](uint64_t state) { return (saved & state) == state; };
  // AVX512F, DQ, BW and VL, which every CPU with one of the 16-bit extensions has.
  const bool avx512 =
      bit(leaf7.ebx, 16) && bit(leaf7.ebx, 17) && bit(leaf7.ebx, 30) && bit(leaf7.ebx, 31);
  const bool avx2 = bit(leaf7.ebx, 5), tiles = bit(leaf7.edx, 24);
  bool has = false;
  uint64_t state = kAvxState;
  switch (info.unit) {
    case CpuUnit::kFma:
      has = avx2 && bit(leaf1.ecx, 12);
      break;
    case CpuUnit::kF16c:
      has = avx2 && bit(leaf1.ecx, 29);
      break;
    case CpuUnit::kAvx512Bf16:
      has = avx512 && bit(leaf7_1.eax, 5);
      state = kAvx512State;
      break;
    case CpuUnit::kAvx512Fp16:
      has = avx512 && bit(leaf7.edx, 23);
      state = kAvx512State;
      break;
    case CpuUnit::kAmxBf16:
      has = tiles && bit(leaf7.edx, 22);
      state = kTileState;
      break;
    case CpuUnit::kAmxFp16:
      has = tiles && bit(leaf7_1.eax, 21);
      state = kTileState;
      break;
  }
  if (!has) return "this CPU has no " + std::string(info.name);
  if (!saves(state) || (state == kTileState && !may_use_tiles())) {
    return "the operating system does not let programs use " + std::string(info.name);
  }
  return "";
}

}  // namespace

std::span<const CpuUnitInfo> cpu_units() {
  return kUnits;
}

const CpuUnitInfo& cpu_unit_info(CpuUnit unit) {
  return kUnits[static_cast<size_t>(unit)];  // rows are in the order of the enumerators
}

bool cpu_has(CpuUnit unit, std::string* why_not) {
  static const std::array<std::string, std::size(kUnits)> kObstacles = [] {
    std::array<std::string, std::size(kUnits)> obstacles;
    for (const CpuUnitInfo& info : kUnits) {
      obstacles[static_cast<size_t>(info.unit)] = obstacle(info);
    }
    return obstacles;
  }();
  const std::string& found = kObstacles[static_cast<size_t>(unit)];
  if (!found.empty() && why_not != nullptr) *why_not = found;
  return found.empty();
}

const CpuUnitInfo* cpu_unit_of(const Accumulator& accumulator) {
  for (const UnitSum& sum : kSums) {
    const bool factors_fit =
        sum.factors == nullptr
            ? accumulator.operands.empty()
            : !accumulator.operands.empty() && accumulator.takes(find_format(sum.factors));
    if (accumulator.kind == sum.kind && accumulator.format == &find_format(sum.format) &&
        factors_fit) {
      return &cpu_unit_info(sum.unit);
    }
  }
  return nullptr;
}

const CpuUnitInfo* cpu_unit_of(const Format& format, Rounding rounding) {
  const bool is_directed =
      rounding == Rounding::kTowardZero || rounding == Rounding::kUp || rounding == Rounding::kDown;
  for (const UnitConversion& row : kConversions) {
    const bool rounds_so = rounding == Rounding::kNearestEven || (row.directed && is_directed);
    if (rounds_so && &format == &find_format(row.format)) return &cpu_unit_info(row.unit);
  }
  return nullptr;
}

}  // namespace lockstep
