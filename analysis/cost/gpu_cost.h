// Estimates the time of a step on a named GPU by roofline, for comparing policies.
// Each instruction of the lowered program takes the longer of two times:
//
//   arithmetic   2 multiply_adds / (the peak rate of the unit that takes its factors)
//   traffic      bytes of its operands and results in their formats / memory bandwidth
//
// so casts cost what they read and write, and an op in FP32 twice the traffic of one in 16 bits.
// Views move nothing. The optimizer reads and writes weights, masters, gradients and state once.
// Products whose extents do not fill the tensor cores' tiles (src/lower/layer_facts.h) run at
// kUnalignedRate of the peak; FP8 products that are not aligned run in the 16-bit unit.
// Not modelled: launches, fusion of neighbours, caches, overlap, communication. So only the ratio
// of two policies of one network means something, and that of small networks little.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/graph/ir.h"
#include "src/lower/layer_facts.h"
#include "src/lower/program.h"

namespace lockstep {

inline constexpr double kUnalignedRate = 0.5;  // a judgement: measured rates lie on both sides

inline constexpr double kGiga = 1e9;

// Peak rates without sparsity in 10^12 operations a second (a multiply-add is two); 0: no such
// unit.
struct Gpu {
  std::string_view name, help, source;
  double fp32, tf32, fp16, bf16, fp8, mxfp8, nvfp4;
  double bandwidth;  // bytes a second / kGiga
};
std::span<const Gpu> gpus();
// The GPU of estimates for which none is named.
inline constexpr std::string_view kDefaultGpu = "h100";
const Gpu& find_gpu(std::string_view name);  // Throws: InputError with a did-you-mean

struct StepCost {
  double seconds = 0;                      // of all
  std::map<std::string, double> by_layer;  // the optimizer's part is in no layer
};

// `memory`: of the lane, for the optimizer's traffic.
StepCost step_cost(const Graph& step, const Program& program, const MemoryFacts& memory,
                   const Gpu& gpu);

int64_t total_bytes(const MemoryFacts& memory);

// Whether the GPU has a unit for products in `format`: "fp16", "bf16", "tf32", "fp8", "mxfp8",
// "nvfp4", "fp32".
double peak_rate(const Gpu& gpu, std::string_view format);  // 0: it has none
std::vector<std::string_view> rated_formats();              // in the order of columns

}  // namespace lockstep
