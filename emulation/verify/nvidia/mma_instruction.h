// THE table of the matrix instructions of NVIDIA GPUs that this program runs, with the layout of
// their operands, for kernels and for the host. Knows nothing of accumulators' rules.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "emulation/accumulator/aligned_block_core.h"
#include "emulation/number/number_format.h"
#include "emulation/verify/nvidia/mma_layout.h"
#include "src/core/host_device.h"

namespace lockstep::mma {

enum class Family : uint8_t {
  kMmaSync,  // mma.sync: a warp, operands in registers
  kWmma,     // the WMMA API: a warp, fragments of unspecified layout
  kWgmma,    // wgmma: four warps, operands in shared memory; sm_90a only
};

enum class Type : uint8_t { kFp16, kBf16, kTf32, kE4m3, kE5m2 };

// Name of the format table.
std::string_view format_name(Type type);

// TF32 is an FP32 register whose low 13 bits the hardware ignores, as documented.
LOCKSTEP_HOST_DEVICE constexpr int bits_of(Type type) {
  switch (type) {
    case Type::kFp16:
    case Type::kBf16:
      return 16;
    case Type::kTf32:
      return 32;
    default:
      return 8;
  }
}

template <const NumberFormat& kFormat>
LOCKSTEP_HOST_DEVICE constexpr BlockEncoding encoding_of_format(int ignored_bits = 0) {
  constexpr int kPrecision = kFormat.precision, kEmin = kFormat.emin;
  constexpr int kStorageBits = kFormat.storage_bits();
  constexpr bool kHasInfinity = kFormat.has_infinity();
  return {kPrecision, kEmin, kStorageBits, kHasInfinity, ignored_bits};
}

LOCKSTEP_HOST_DEVICE constexpr BlockEncoding encoding_of(Type type) {
  switch (type) {
    case Type::kFp16:
      return encoding_of_format<kFp16>();
    case Type::kBf16:
      return encoding_of_format<kBf16>();
    case Type::kTf32:
      return encoding_of_format<kTf32>(bits_of(type) - kTf32.storage_bits());
    case Type::kE4m3:
      return encoding_of_format<kFp8E4m3>();
    default:
      return encoding_of_format<kFp8E5m2>();
  }
}

// D = A * B + C, shape m x n x k.
struct Shape {
  Type a, b;
  bool halves;  // C and D are FP16, otherwise FP32
  int m, n, k;

  LOCKSTEP_HOST_DEVICE constexpr int row_words() const { return k * bits_of(a) / kWordBits; }
  LOCKSTEP_HOST_DEVICE constexpr int a_words() const { return m * row_words(); }
  LOCKSTEP_HOST_DEVICE constexpr int b_words() const { return n * row_words(); }
  LOCKSTEP_HOST_DEVICE constexpr int c_row_words() const { return halves ? n / 2 : n; }
  LOCKSTEP_HOST_DEVICE constexpr int c_words() const { return m * c_row_words(); }
  LOCKSTEP_HOST_DEVICE constexpr int outputs() const { return m * n; }
  LOCKSTEP_HOST_DEVICE constexpr BlockEncoding accumulator() const {
    return register_encoding(halves ? BlockOutput::kFp16NearestEven : BlockOutput::kFp32TowardZero);
  }
  bool operator==(const Shape&) const = default;
};

struct Instruction {
  Family family;
  Shape shape;
  int capability;  // the least 10 * major + minor of chips that have it; wgmma: only 90

  std::string name() const;  // "mma.sync.m16n8k16.f32.f16.f16.f32"
  // Needs: a chip of this compute capability (10 * major + minor).
  bool runs_on(int chip) const {
    return family == Family::kWgmma ? chip == capability : chip >= capability;
  }
  bool can_start_from_zero() const { return family == Family::kWgmma; }  // scale-d = 0
  bool operator==(const Instruction&) const = default;
};
std::span<const Instruction> instructions();

}  // namespace lockstep::mma
