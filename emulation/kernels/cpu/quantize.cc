// Values go through 16-bit words, as the instructions require. With statistics, the software kernel
// also measures and rounds: one more pass, which also checks the hardware against its model.
#include "emulation/kernels/cpu/quantize.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <stdexcept>
#include <string>

#include "emulation/accumulator/fast_round.h"
#include "emulation/kernels/cpu/instructions.h"
#include "emulation/kernels/simd/products/gemm_plan.h"
#include "src/core/parallel.h"

namespace lockstep {
namespace {

constexpr int64_t kPiece = 4096;  // elements: words and floats stay in a first-level cache
constexpr int kBf16Shift = 16;

struct Conversion {
  CpuUnit unit;
  void (*narrow)(const float* x, uint16_t* y, int64_t count, Rounding);
  void (*widen)(const uint16_t* x, float* y, int64_t count);  // exact; any NaN
};
constexpr Conversion kConversions[] = {
    {CpuUnit::kF16c, cpu::vcvtps2ph, cpu::vcvtph2ps},
    {CpuUnit::kAvx512Bf16,
     [](const float* x, uint16_t* y, int64_t count, Rounding) { cpu::vcvtneps2bf16(x, y, count); },
     [](const uint16_t* x, float* y, int64_t count) {
       for (int64_t i = 0; i < count; ++i) {
         y[i] = std::bit_cast<float>(uint32_t{x[i]} << kBf16Shift);
       }
     }},
};

const Conversion* find(const Format& format, Rounding rounding) {
  const CpuUnitInfo* info = cpu_unit_of(format, rounding);
  for (const Conversion& row : kConversions) {
    if (info != nullptr && row.unit == info->unit) return &row;
  }
  return nullptr;
}

void widen(const Conversion& conversion, const uint16_t* words, float* y, int64_t count) {
  conversion.widen(words, y, count);
  for (int64_t i = 0; i < count; ++i) y[i] = canonical_nan(y[i]);
}

template <typename Body>
void for_pieces(int64_t count, Body body) {
  constexpr int64_t kPieces = 16;  // per task
  const int64_t task = kPieces * kPiece;
  parallel_for(ceil_div(count, task), [&](int64_t i) {
    const int64_t end = std::min(count, (i + 1) * task);
    for (int64_t at = i * task; at < end; at += kPiece) body(at, std::min(kPiece, end - at));
  });
}

}  // namespace

void cpu_quantize(const float* before, float* after, int64_t count, const QuantizeSpec& spec,
                  TensorStats* stats, QuantizeKernel software) {
  const Conversion* row = spec.measure_only ? nullptr : find(*spec.format, spec.rounding);
  if (row == nullptr) return software(before, after, count, spec, stats);
  std::string why_not;
  if (!cpu_has(row->unit, &why_not)) {
    throw std::logic_error("rounding to " + spec.format->name + ": " + why_not);
  }
  if (stats == nullptr) {
    return for_pieces(count, [&](int64_t at, int64_t size) {
      uint16_t words[kPiece];
      row->narrow(before + at, words, size, spec.rounding);
      widen(*row, words, after + at, size);
    });
  }
  // `after` may be `before`: the hardware's words are computed first.
  static thread_local Workspace<uint16_t> workspace;
  uint16_t* words = workspace.get(static_cast<size_t>(count)).data();
  for_pieces(count, [&](int64_t at, int64_t size) {
    row->narrow(before + at, words + at, size, spec.rounding);
  });
  software(before, after, count, spec, stats);
  for_pieces(count, [&](int64_t at, int64_t size) {
    float values[kPiece];
    widen(*row, words + at, values, size);
    if (std::memcmp(values, after + at, static_cast<size_t>(size) * sizeof(float)) != 0) {
      throw std::runtime_error(
          std::string(cpu_unit_info(row->unit).name) + " rounds to " + spec.format->name +
          " differently from its model; run `lockstep verify --hardware` for details");
    }
  });
}

}  // namespace lockstep
