// The loops of emulation/kernels/scalar/products/recurrent_rows.h, compiled for each instruction
// set.
#include "emulation/kernels/simd/products/recurrent.h"

#include "emulation/kernels/scalar/products/recurrent_rows.h"
#include "emulation/kernels/simd/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "emulation/kernels/simd/products/recurrent.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace lockstep {
namespace HWY_NAMESPACE {
#if LOCKSTEP_SIMD_TARGET

template <typename T>
void lstm(const Kernels<T>& kernels, const RecurrentStep<T>& row) {
  recurrent_rows::lstm(kernels, row);
}
template <typename T>
void lstm_backward(const Kernels<T>& kernels, const RecurrentStepBackward<T>& row) {
  recurrent_rows::lstm_backward(kernels, row);
}
template <typename T>
void gru(const Kernels<T>& kernels, const RecurrentStep<T>& row) {
  recurrent_rows::gru(kernels, row);
}
template <typename T>
void gru_backward(const RecurrentStepBackward<T>& row) {
  recurrent_rows::gru_backward(row);
}

template <typename T>
void use_cells(Kernels<T>& kernels) {
  kernels.cell = {lstm<T>, lstm_backward<T>, gru<T>, gru_backward<T>};
}

#endif  // LOCKSTEP_SIMD_TARGET
}  // namespace HWY_NAMESPACE
}  // namespace lockstep
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lockstep {

void use_simd_cells(KernelSet& set, SimdTarget target) {
  if (target == SimdTarget::kAvx2) {
    N_AVX2::use_cells(set.f32);
    N_AVX2::use_cells(set.f64);
  } else {
    N_AVX3::use_cells(set.f32);
    N_AVX3::use_cells(set.f64);
  }
}

}  // namespace lockstep
#endif  // HWY_ONCE
