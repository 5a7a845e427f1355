// The Hadamard transform of a factor along the axis of its product's sum.
// It spreads an outlier over 16 neighbours before they are rounded to few bits. Both factors of a
// product are transformed, so the exact product is unchanged: the transform is orthogonal. It runs
// as on hardware: a product of BF16 matrices, summed in FP32, rounded to BF16.
//
//   y_j = bf16(sum over i of x_i s_i h_ij / 4)    h_ij = -1 where i & j has an odd number of bits
//
// Groups of 16 follow each other along the axis; s are the signs of the cast. Source: NVIDIA, arXiv
// 2509.25149, section on random Hadamard transforms; torchao, nvfp4_training/hadamard_utils.py.
#pragma once

#include <cstdint>
#include <span>

#include "emulation/kernels/kernel_set.h"
#include "src/lower/scaled_cast.h"

namespace lockstep {

// Bit i of `signs`: s_i = -1.
// Requires: shape.along() is a multiple of 16; y does not overlap x.
void rotate(const KernelSet& set, std::span<const float> x, std::span<float> y,
            const BlockShape& shape, uint16_t signs);

}  // namespace lockstep
