// A matrix product that rounds its factors and its result. The definition is four passes. A kernel
// set may do them in one pass that reads and writes every array once, with the same bits and the
// same statistics.
//
//   A' = quantize(A)   B' = quantize(B)   C = gemm(A', B')   C = quantize(C)
//
// A and B are not changed. Knows nothing of formats and accumulators.
#pragma once

#include <vector>

#include "emulation/kernels/kernel_set.h"

namespace lockstep {

template <typename T>
using QuantizeFunction = void (*)(const T*, T*, int64_t, const QuantizeSpec&, TensorStats*);

// Requires: arrays that are rounded or measured are dense (ld* = their number of columns), because
// statistics are sums over the whole array in its order. C must not overlap A or B.
template <typename T>
void rounded_gemm(const Kernels<T>& kernels, const RoundedGemmArgs<T>& args);

// The definition, with the given functions.
template <typename T>
void rounded_gemm_in_passes(const RoundedGemmArgs<T>& args, void (*gemm)(const GemmArgs<T>&),
                            QuantizeFunction<T> quantize);

// The first two passes: A' and B'.
template <typename T>
class RoundedFactors {
 public:
  RoundedFactors(const RoundedGemmArgs<T>& args, QuantizeFunction<T> quantize);
  RoundedFactors(const RoundedFactors&) = delete;
  RoundedFactors& operator=(const RoundedFactors&) = delete;
  // The remaining passes: the product of A' and B', and the rounding of C. Neither factor is
  // rounded again.
  RoundedGemmArgs<T> rest() const { return {product_, {}, {}, result_}; }

 private:
  GemmArgs<T> product_;
  GemmRounding result_;
  std::vector<T> a_, b_;
};

}  // namespace lockstep
