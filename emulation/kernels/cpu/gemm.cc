// From an accumulator to the unit that computes so.
#include "emulation/kernels/cpu/gemm.h"

#include <stdexcept>
#include <string>

namespace lockstep {
namespace {

struct UnitOfAccumulator {
  std::string_view accumulator;
  CpuUnit unit;
  void (*gemm)(const GemmArgs<float>&);  // null: the software kernels are made of the instruction
};
constexpr UnitOfAccumulator kUnits[] = {
    {"fp32_fused", CpuUnit::kFma, nullptr},
    {"avx512_bf16", CpuUnit::kAvx512Bf16, avx512_bf16_gemm},
    {"fp16", CpuUnit::kAvx512Fp16, avx512_fp16_gemm},
    {"amx_bf16", CpuUnit::kAmxBf16, amx_gemm},
    {"amx_fp16", CpuUnit::kAmxFp16, amx_gemm},
};

const UnitOfAccumulator* find(const Accumulator& accumulator) {
  for (const UnitOfAccumulator& row : kUnits) {
    if (row.accumulator == accumulator.name) return &row;
  }
  return nullptr;
}

}  // namespace

const CpuUnitInfo* cpu_unit_of(const Accumulator& accumulator) {
  const UnitOfAccumulator* row = find(accumulator);
  return row != nullptr ? &cpu_unit_info(row->unit) : nullptr;
}

bool is_unit_sum(const Accumulator& accumulator) {
  const UnitOfAccumulator* row = find(accumulator);
  return row != nullptr && row->gemm != nullptr;
}

void cpu_gemm(const GemmArgs<float>& args) {
  // A sum of no products is no instruction's.
  if (!is_unit_sum(*args.accumulator) || args.k == 0) return active_kernels().f32.gemm(args);
  const UnitOfAccumulator& row = *find(*args.accumulator);
  std::string why_not;
  if (!cpu_has(row.unit, &why_not)) {
    throw std::logic_error("accumulator " + args.accumulator->name + ": " + why_not);
  }
  row.gemm(args);
}

}  // namespace lockstep
