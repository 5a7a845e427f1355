// Products whose sums are formed block by block, as GPUs form those of block-scaled FP8.
//
//   for each block of the sum:   part = sum of q_a q_b from zero, in the op's accumulator
//                                acc = fp32(acc + fp32(fp32(part r_a) r_b))
//   then + bias
//
// q are the rounded elements, r the scales of their blocks (factor_scales.h). DeepSeek-V3's
// promotion is this with blocks of 128 and the accumulator hopper_fp8. With scales that are powers
// of two only the addition rounds. Source: DeepSeek-V3, arXiv 2412.19437, section 3.3.2; the order
// of the two multiplications is that of torchao's kernel, triton_fp8_gemm_1x128_128x128.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "src/execute/factor_scales.h"
#include "src/graph/op.h"

namespace lockstep {

// The memory of a product, kept between calls.
struct BlockProductBuffers {
  std::vector<float> elements[2], part;
};

// Runs one of linear's three products. `scales`: of call.inputs 0 and 1, whose values are those
// under their scales. The output is not rounded; call.sums_ready runs before a bias is added.
// Requires: FP32 containers; both factors have blocks of `block` along the sum.
void run_block_products(const OpCall& call, std::span<const int> axes, int64_t block,
                        const FactorScales& first, const FactorScales& second,
                        BlockProductBuffers& buffers);

}  // namespace lockstep
