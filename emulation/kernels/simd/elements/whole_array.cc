// Whole vectors here; the scalar loop takes what is left of a range.
#include "emulation/kernels/simd/elements/whole_array.h"

#include <algorithm>

#include "emulation/kernels/scalar/elements/whole_array.h"
#include "emulation/kernels/simd/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "emulation/kernels/simd/elements/whole_array.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace lockstep {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
#if LOCKSTEP_SIMD_TARGET

// Signed integers compare in one instruction on every target; magnitudes are never negative.
template <typename T>
BitsOf<T> largest_bits(const T* x, int64_t count, BitsOf<T> limit) {
  const hn::ScalableTag<T> d;
  const hn::RebindToSigned<decltype(d)> di;
  using Signed = hn::TFromD<decltype(di)>;
  using V = hn::Vec<decltype(di)>;
  constexpr BitsOf<T> kMagnitude = ~BitsOf<T>{0} >> 1;
  constexpr int kVectors = 4;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const V magnitude = hn::Set(di, static_cast<Signed>(kMagnitude));
  const V most = hn::Set(di, static_cast<Signed>(std::min(limit, kMagnitude)));
  V largest[kVectors];
  for (V& part : largest) part = hn::Zero(di);
  int64_t i = 0;
  for (; i + kVectors * lanes <= count; i += kVectors * lanes) {
    for (int v = 0; v < kVectors; ++v) {
      const V bits = hn::And(hn::BitCast(di, hn::LoadU(d, x + i + v * lanes)), magnitude);
      largest[v] = hn::Max(largest[v], hn::IfThenZeroElse(hn::Gt(bits, most), bits));
    }
  }
  const V all = hn::Max(hn::Max(largest[0], largest[1]), hn::Max(largest[2], largest[3]));
  const auto of_vectors = static_cast<BitsOf<T>>(hn::GetLane(hn::MaxOfLanes(di, all)));
  return std::max(of_vectors, scalar_largest_bits(x + i, count - i, limit));
}

#endif  // LOCKSTEP_SIMD_TARGET
}  // namespace HWY_NAMESPACE
}  // namespace lockstep
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lockstep {
namespace {

template <typename T, BitsOf<T> (*LargestBits)(const T*, int64_t, BitsOf<T>)>
void use_largest_bits(Kernels<T>& kernels) {
  kernels.abs_max = abs_max<T, LargestBits>;
  kernels.finite_abs_max = finite_abs_max<T, LargestBits>;
  kernels.all_finite = all_finite<T, LargestBits>;
}

}  // namespace

void use_simd_whole_array(KernelSet& set, SimdTarget target) {
  if (target == SimdTarget::kAvx2) {
    use_largest_bits<float, N_AVX2::largest_bits<float>>(set.f32);
    use_largest_bits<double, N_AVX2::largest_bits<double>>(set.f64);
  } else {
    use_largest_bits<float, N_AVX3::largest_bits<float>>(set.f32);
    use_largest_bits<double, N_AVX3::largest_bits<double>>(set.f64);
  }
}

}  // namespace lockstep
#endif  // HWY_ONCE
