// Selects the unit that forms an accumulator's sums.
#include "emulation/kernels/cpu/gemm.h"

#include <stdexcept>
#include <string>

namespace lockstep {
namespace {

struct UnitProduct {
  CpuUnit unit;
  void (*gemm)(const GemmArgs<float>&);
};
// The other units' sums (FMA's) are formed by the software kernels.
constexpr UnitProduct kProducts[] = {
    {CpuUnit::kAvx512Bf16, avx512_bf16_gemm},
    {CpuUnit::kAvx512Fp16, avx512_fp16_gemm},
    {CpuUnit::kAmxBf16, amx_gemm},
    {CpuUnit::kAmxFp16, amx_gemm},
};

const UnitProduct* find(const Accumulator& accumulator) {
  const CpuUnitInfo* info = cpu_unit_of(accumulator);
  for (const UnitProduct& row : kProducts) {
    if (info != nullptr && row.unit == info->unit) return &row;
  }
  return nullptr;
}

}  // namespace

bool is_unit_sum(const Accumulator& accumulator) {
  return find(accumulator) != nullptr;
}

void cpu_gemm(const GemmArgs<float>& args, void (*software)(const GemmArgs<float>&)) {
  const UnitProduct* row = find(*args.accumulator);
  // No instruction forms a sum of no products.
  if (row == nullptr || args.k == 0) return software(args);
  std::string why_not;
  if (!cpu_has(row->unit, &why_not)) {
    throw std::logic_error("accumulator " + args.accumulator->name + ": " + why_not);
  }
  row->gemm(args);
}

}  // namespace lockstep
