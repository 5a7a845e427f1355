// Versions of a captured step that are as good as the step itself, to see what it determines.
// From weights moved by one FP32 ulp; with sums in other orders (other_order.h); with every FP32
// result moved by one ulp (run_moved), since functions, norms and softmax keep their order; with
// both. One ulp rarely changes a weight that is rounded to 16 bits; the order of a sum changes how
// its result is rounded. In a small network an order may change nothing that matters; a large one
// has such roundings in every layer, and a few versions show them.
// Where a small network misses its bound, many more are drawn, in which every FP32 result is off by
// kCoarseUlps, a tenth of what V3 takes for equal: PyTorch computes the places of an interpolation,
// for instance, in FP32. A result that hangs on a few numbers in 16 bits, or on a relu near zero,
// rarely moves, and then by much.
#pragma once

#include <cstdint>

#include "analysis/faithful/captured_step.h"
#include "analysis/faithful/other_order.h"
#include "emulation/kernels/active_kernels.h"

namespace lockstep {

inline constexpr int kPlainVersions = 1 + 2 * kOtherOrders, kFewVersions = 5, kAllVersions = 64;
inline constexpr float kCoarseUlps = 16;

// A network that computes more than 2^22 values.
bool is_large(const Capture& capture);

struct Version {
  bool moves_weights = false;
  int order = -1;  // of kernels_in_other_orders(), -1: as it is
  CapturedStepRunner::Moves moves = {.ulps = 0};

  using Kernels = const KernelSet& (*)();
  Kernels kernels() const {
    return order < 0 ? active_kernels : kernels_in_other_orders()[static_cast<size_t>(order)];
  }
};
// Of 0 to kAllVersions - 1, those from kPlainVersions on by kCoarseUlps.
Version version_of(int i);
// That version of the step from `values`. Throws: as CapturedStepRunner::run.
ComputedStep run_version(const Version& version, const Capture& capture, const Policy& policy,
                         const CapturedStep& step, const Tensors& values);

}  // namespace lockstep
