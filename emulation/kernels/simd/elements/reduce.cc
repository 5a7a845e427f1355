// Block sums in vectors: the 16 virtual lanes of emulation/kernels/reduction.h are one AVX-512
// register or two AVX2 registers, so that vector lanes and virtual lanes are the same.
#include "emulation/kernels/simd/elements/reduce.h"

#include <algorithm>

#include "emulation/accumulator/fast_round.h"
#include "emulation/kernels/reduction.h"
#include "emulation/kernels/scalar/elements/reduce.h"
#include "emulation/kernels/scalar/elements/row_kernels.h"
#include "emulation/kernels/simd/elements/exp_log.h"
#include "emulation/kernels/simd/targets.h"
#include "emulation/number/number_format.h"
#include "src/core/chunks.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "emulation/kernels/simd/elements/reduce.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "emulation/kernels/simd/elements/column_sums-inl.h"
#include "emulation/kernels/simd/rounding/narrow-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lockstep {
namespace HWY_NAMESPACE {
#if LOCKSTEP_SIMD_TARGET

// The 16 lane sums of a block; add(acc, x) is the accumulator's addition on vectors.
template <class Add>
HWY_INLINE void lane_sums(const float* terms, int64_t count, Add add, float* HWY_RESTRICT lanes) {
  const FloatTag d;
  constexpr int kLanes = static_cast<int>(hn::MaxLanes(FloatTag()));
  constexpr int kVectors = static_cast<int>(kReductionLanes) / kLanes;
  FloatVec acc[kVectors];
  for (int j = 0; j < kVectors; ++j) acc[j] = hn::Zero(d);
  int64_t i = 0;
  for (; i + kReductionLanes <= count; i += kReductionLanes) {
    for (int j = 0; j < kVectors; ++j) {
      acc[j] = add(acc[j], hn::LoadU(d, terms + i + j * kLanes));
    }
  }
  for (int j = 0; j < kVectors && i + j * kLanes < count; ++j) {
    const int64_t left = std::min<int64_t>(kLanes, count - i - j * kLanes);
    const auto mask = hn::FirstN(d, static_cast<size_t>(left));
    const FloatVec x = hn::MaskedLoad(mask, d, terms + i + j * kLanes);
    acc[j] = hn::IfThenElse(mask, add(acc[j], x), acc[j]);
  }
  for (int j = 0; j < kVectors; ++j) hn::StoreU(acc[j], d, lanes + j * kLanes);
}

template <class Round>
HWY_NOINLINE void narrow_lane_sums(const float* terms, int64_t count, float* lanes) {
  const FloatTag d;
  const Round round;
  lane_sums(
      terms, count,
      [=](FloatVec acc, FloatVec x)
          HWY_ATTR { return round(d, add_to_odd(d, canonical(d, x), acc)); },
      lanes);
}

HWY_NOINLINE void float_lane_sums(const float* terms, int64_t count, float* lanes) {
  lane_sums(
      terms, count, [](FloatVec acc, FloatVec x) HWY_ATTR { return hn::Add(acc, x); }, lanes);
}

double block_sum(const float* terms, int64_t count, const Accumulator& accumulator) {
  const Format& format = *accumulator.format;
  float lanes[kReductionLanes];
  if (format.is_fp32()) {
    float_lane_sums(terms, count, lanes);
    for (int64_t half = kReductionLanes / 2; half > 0; half /= 2) {
      for (int64_t l = 0; l < half; ++l) lanes[l] += lanes[l + half];
    }
    return canonical_nan(lanes[0]);
  }
  if (format.precision == kFp16.precision && format.emin == kFp16.emin) {
    narrow_lane_sums<ToFp16>(terms, count, lanes);
  } else if (format.precision == kBf16.precision && format.emin == kBf16.emin) {
    narrow_lane_sums<ToBf16>(terms, count, lanes);
  } else {
    return scalar_block_sum(terms, count, accumulator);
  }
  const FastRound round(format);
  double sums[kReductionLanes];
  std::copy(lanes, lanes + kReductionLanes, sums);
  for (int64_t half = kReductionLanes / 2; half > 0; half /= 2) {
    for (int64_t l = 0; l < half; ++l) sums[l] = round.add(sums[l], sums[l + half]);
  }
  return canonical_nan(sums[0]);
}

// Kernels<T>::channel_sum of columns [first, last) of x (rows, columns).
template <typename T>
HWY_NOINLINE void sum_columns(const T* x, T* y, int64_t rows, int64_t columns, int64_t first,
                              int64_t last, const Accumulator& accumulator) {
  ColumnSums<T> sums(last - first);
  for_rows_in_blocks(
      rows,
      [&](int64_t row, int64_t row_of_block) HWY_ATTR {
        const T* from = x + row * columns + first;
        T* lane = sums.lane(row_of_block);
        for_vectors<T>(last - first, [&](auto at, int64_t i) HWY_ATTR {
          at.store(hn::Add(at.load(lane + i), at.load(from + i)), lane + i);
        });
      },
      sums);
  sums.store(y + first, accumulator);
}

#endif  // LOCKSTEP_SIMD_TARGET
}  // namespace HWY_NAMESPACE
}  // namespace lockstep
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lockstep {
namespace {

template <typename T>
using ColumnSum = void (*)(const T* x, T* y, int64_t rows, int64_t columns, int64_t first,
                           int64_t last, const Accumulator& accumulator);

template <typename T, BlockSum<T> kSum, ColumnSum<T> kColumns>
void use_channel_sum(Kernels<T>& kernels) {
  kernels.channel_sum = [](const T* x, T* y, int64_t outer, int64_t channels, int64_t inner,
                           const Accumulator& accumulator) {
    if (inner > 1 || channels == 1 || !adds_natively<T>(accumulator)) {
      channel_sum_with<T>(kSum, x, y, outer, channels, inner, accumulator);
      return;
    }
    parallel_chunks(channels, kColumnTile, [&](int64_t first, int64_t last) {
      kColumns(x, y, outer, channels, first, last, accumulator);
    });
  };
}

}  // namespace

double avx2_block_sum(const float* terms, int64_t count, const Accumulator& accumulator) {
  return N_AVX2::block_sum(terms, count, accumulator);
}
double avx512_block_sum(const float* terms, int64_t count, const Accumulator& accumulator) {
  return N_AVX3::block_sum(terms, count, accumulator);
}

namespace {
// Sums of doubles are plain loops.
constexpr RowFunctions<float> kAvx2Float = {avx2_block_sum, avx2_exp, avx2_log};
constexpr RowFunctions<double> kAvx2Double = {scalar_block_sum<double>, avx2_exp, avx2_log};
constexpr RowFunctions<float> kAvx512Float = {avx512_block_sum, avx512_exp, avx512_log};
constexpr RowFunctions<double> kAvx512Double = {scalar_block_sum<double>, avx512_exp, avx512_log};
}  // namespace

void use_simd_sums(KernelSet& set, SimdTarget target) {
  if (target == SimdTarget::kAvx2) {
    use_channel_sum<float, avx2_block_sum, N_AVX2::sum_columns<float>>(set.f32);
    use_channel_sum<double, scalar_block_sum<double>, N_AVX2::sum_columns<double>>(set.f64);
    use_row_functions<float, kAvx2Float>(set.f32);
    use_row_functions<double, kAvx2Double>(set.f64);
  } else {
    use_channel_sum<float, avx512_block_sum, N_AVX3::sum_columns<float>>(set.f32);
    use_channel_sum<double, scalar_block_sum<double>, N_AVX3::sum_columns<double>>(set.f64);
    use_row_functions<float, kAvx512Float>(set.f32);
    use_row_functions<double, kAvx512Double>(set.f64);
  }
}

}  // namespace lockstep
#endif  // HWY_ONCE
