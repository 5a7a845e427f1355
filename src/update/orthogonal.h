// The matrix part of Muon: a direction is replaced by the orthogonal matrix nearest to it, about.
// Knows one matrix and the numbers of the iteration; the momentum and the step are update rules
// (emulation/kernels/optimizer_rules.h).
#pragma once

#include <cstdint>

#include "emulation/format/format.h"
#include "emulation/kernels/kernel_set.h"

namespace lockstep {

// Newton-Schulz: X = X / max(|X|_F, eps), then `steps` times G = X X^T, X = a X + (b G + c G G) X.
// Source: torch.optim.Muon and K. Jordan's Muon, which compute in BF16.
struct NewtonSchulz {
  double a = 0, b = 0, c = 0, eps = 0;
  int64_t steps = 0;
  const Format* format = nullptr;  // of every intermediate result; sums are FP32, k ascending
};

// In place. x: a row-major matrix (rows, columns), worked on with its shorter side first.
template <typename T>
void orthogonalize(const KernelSet& kernels, T* x, int64_t rows, int64_t columns,
                   const NewtonSchulz& numbers);

}  // namespace lockstep
