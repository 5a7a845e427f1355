// THE table of matrix instructions. To add one, add a row here and a line in mma_kernels.cu.
#include "emulation/verify/nvidia/mma_instruction.h"

#include <array>
#include <stdexcept>

#include "emulation/accumulator/ptx_types.h"

namespace lockstep::mma {
namespace {

constexpr auto kF16 = Type::kFp16, kBf16 = Type::kBf16, kTf32 = Type::kTf32, kE4m3 = Type::kE4m3,
               kE5m2 = Type::kE5m2;
constexpr bool kToFp32 = false, kToFp16 = true;

constexpr Instruction sync(Type a, Type b, bool halves, int k, int capability) {
  return {Family::kMmaSync, {a, b, halves, 16, 8, k}, capability};
}
constexpr Instruction wmma(Type type, bool halves, int k, int capability) {
  return {Family::kWmma, {type, type, halves, 16, 16, k}, capability};
}
constexpr Instruction wgmma(Type a, Type b, bool halves, int k) {
  return {Family::kWgmma, {a, b, halves, 64, 8, k}, 90};
}

// No toolkit from CUDA 13 on supports Volta (sm_70).
constexpr std::array kInstructions = {
    sync(kF16, kF16, kToFp32, 16, 80),   sync(kF16, kF16, kToFp32, 8, 75),
    sync(kF16, kF16, kToFp16, 16, 80),   sync(kF16, kF16, kToFp16, 8, 75),
    sync(kBf16, kBf16, kToFp32, 16, 80), sync(kBf16, kBf16, kToFp32, 8, 80),
    sync(kTf32, kTf32, kToFp32, 8, 80),  sync(kTf32, kTf32, kToFp32, 4, 80),
    sync(kE4m3, kE4m3, kToFp32, 32, 89), sync(kE4m3, kE5m2, kToFp32, 32, 89),
    sync(kE5m2, kE4m3, kToFp32, 32, 89), sync(kE5m2, kE5m2, kToFp32, 32, 89),
    sync(kE4m3, kE4m3, kToFp16, 32, 89), sync(kE4m3, kE5m2, kToFp16, 32, 89),
    sync(kE5m2, kE4m3, kToFp16, 32, 89), sync(kE5m2, kE5m2, kToFp16, 32, 89),
    wmma(kF16, kToFp32, 16, 75),         wmma(kF16, kToFp16, 16, 75),
    wmma(kBf16, kToFp32, 16, 80),        wmma(kTf32, kToFp32, 8, 80),
    wgmma(kF16, kF16, kToFp32, 16),      wgmma(kF16, kF16, kToFp16, 16),
    wgmma(kBf16, kBf16, kToFp32, 16),    wgmma(kTf32, kTf32, kToFp32, 8),
    wgmma(kE4m3, kE4m3, kToFp32, 32),    wgmma(kE4m3, kE5m2, kToFp32, 32),
    wgmma(kE5m2, kE4m3, kToFp32, 32),    wgmma(kE5m2, kE5m2, kToFp32, 32),
    wgmma(kE4m3, kE4m3, kToFp16, 32),    wgmma(kE4m3, kE5m2, kToFp16, 32),
    wgmma(kE5m2, kE4m3, kToFp16, 32),    wgmma(kE5m2, kE5m2, kToFp16, 32),
};

std::string ptx_name(Type type) {
  for (const PtxType& row : kPtxTypes) {
    if (row.format == format_name(type)) return std::string(row.ptx);
  }
  throw std::logic_error("ptx_name: a type without a row");
}

}  // namespace

std::span<const Instruction> instructions() {
  return kInstructions;
}

std::string_view format_name(Type type) {
  switch (type) {
    case Type::kFp16:
      return "fp16";
    case Type::kBf16:
      return "bf16";
    case Type::kTf32:
      return "tf32";
    case Type::kE4m3:
      return "fp8_e4m3";
    default:
      return "fp8_e5m2";
  }
}

std::string Instruction::name() const {
  const std::string result = shape.halves ? "f16" : "f32";
  std::string text = family == Family::kMmaSync ? "mma.sync"
                     : family == Family::kWmma  ? "wmma"
                                                : "wgmma";
  text += ".m" + std::to_string(shape.m) + "n" + std::to_string(shape.n) + "k" +
          std::to_string(shape.k) + "." + result + "." + ptx_name(shape.a) + "." +
          ptx_name(shape.b);
  return family == Family::kMmaSync ? text + "." + result : text;
}

}  // namespace lockstep::mma
