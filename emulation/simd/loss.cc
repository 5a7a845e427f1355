// No vector code of its own: the scalar kernels over the vector array functions.
#include "emulation/simd/loss.h"

#include "emulation/scalar/loss.h"
#include "emulation/simd/math.h"
#include "emulation/simd/reduce.h"

namespace lockstep {
namespace {

// Block sums of doubles have no vector version.
constexpr ArrayMath<float> kAvx2F32 = {avx2_block_sum, avx2_exp, avx2_log};
constexpr ArrayMath<double> kAvx2F64 = {scalar_block_sum<double>, avx2_exp, avx2_log};
constexpr ArrayMath<float> kAvx512F32 = {avx512_block_sum, avx512_exp, avx512_log};
constexpr ArrayMath<double> kAvx512F64 = {scalar_block_sum<double>, avx512_exp, avx512_log};

template <typename T, const ArrayMath<T>& kMath>
void use_losses(Kernels<T>& kernels) {
  kernels.cross_entropy = [](const CrossEntropyArgs<T>& a) { cross_entropy_with<T>(kMath, a); };
  kernels.cross_entropy_backward = [](const CrossEntropyArgs<T>& a) {
    cross_entropy_backward_with<T>(kMath, a);
  };
}

}  // namespace

void use_avx2_losses(Kernels<float>& kernels) {
  use_losses<float, kAvx2F32>(kernels);
}
void use_avx2_losses(Kernels<double>& kernels) {
  use_losses<double, kAvx2F64>(kernels);
}
void use_avx512_losses(Kernels<float>& kernels) {
  use_losses<float, kAvx512F32>(kernels);
}
void use_avx512_losses(Kernels<double>& kernels) {
  use_losses<double, kAvx512F64>(kernels);
}

}  // namespace lockstep
