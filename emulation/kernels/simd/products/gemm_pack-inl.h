// Packs pieces of a matrix into panels.
// A panel holds kStride lines of an operand (rows of A, columns of B), k-major: line i, element k
// at k * kStride + i, so that a register tile reads it from end to end. There are two ways to pack,
// depending on how the operand is stored; neither depends on the values. Included once per
// instruction set.
//
//   k along stored rows (B, or A transposed)     rows are copied, piece by piece
//   k along stored columns (A, or B transposed)  lines are transposed in registers, 4 x kLanes at a
//                                                time (doubles: 2 x kLanes)
#if defined(LOCKSTEP_GEMM_PACK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LOCKSTEP_GEMM_PACK_INL_H_
#undef LOCKSTEP_GEMM_PACK_INL_H_
#else
#define LOCKSTEP_GEMM_PACK_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>

#include "emulation/kernels/simd/targets.h"

HWY_BEFORE_NAMESPACE();
namespace lockstep {
namespace HWY_NAMESPACE {
#if LOCKSTEP_SIMD_TARGET
namespace hn = hwy::HWY_NAMESPACE;

constexpr int ceil_power_of_two(int x) {
  int power = 1;
  while (power < x) power *= 2;
  return power;
}

// Vectors no wider than a panel needs.
template <typename T, int kStride>
using PanelTag = hn::CappedTag<T, static_cast<size_t>(ceil_power_of_two(kStride))>;

// kStride values from `in` to `out`, neither aligned; the last vector may overlap its neighbour.
template <int kStride, typename T>
HWY_INLINE void copy_stride(const T* HWY_RESTRICT in, T* HWY_RESTRICT out) {
  constexpr int kPower = ceil_power_of_two(kStride);
  const hn::CappedTag<T, static_cast<size_t>(kPower == kStride ? kPower : kPower / 2)> d;
  constexpr int kLanes = static_cast<int>(hn::MaxLanes(d));
  for (int i = 0; i < kStride; i += kLanes) {
    const int at = std::min(i, kStride - kLanes);
    hn::StoreU(hn::LoadU(d, in + at), d, out + at);
  }
}

// Rows k in [0, rows) of `in`, each `count` values, to their places in the panels at `out`: `width`
// values to each, kStride x depth long. Missing lines of the last panel are zero; no tile uses the
// places between `width` and kStride.
template <int kStride, typename T>
void pack_rows(const T* in, int64_t row_step, int64_t rows, int64_t count, int64_t width,
               int64_t depth, T* out) {
  int64_t first = 0;
  for (; first + kStride <= count; first += width, out += kStride * depth) {
    for (int64_t k = 0; k < rows; ++k) {
      copy_stride<kStride>(in + k * row_step + first, out + k * kStride);
    }
  }
  for (; first < count; first += width, out += kStride * depth) {
    for (int64_t k = 0; k < rows; ++k) {
      const T* row = in + k * row_step;
      for (int64_t i = 0; i < kStride; ++i) {
        out[k * kStride + i] = first + i < count ? row[first + i] : T(0);
      }
    }
  }
}

// Block b of 16 bytes holds the 16 bytes at `column` of line `line` + b * (lanes of a block).
template <class D, typename T = hn::TFromD<D>>
HWY_INLINE hn::Vec<D> load_lines(D d, const T* const* lines, int64_t column) {
  if constexpr (hn::MaxLanes(d) * sizeof(T) <= 16) {
    return hn::LoadU(d, lines[0] + column);
  } else {
    const hn::Half<D> dh;
    return hn::Combine(d, load_lines(dh, lines + hn::MaxLanes(dh), column),
                       load_lines(dh, lines, column));
  }
}

// Lines i in [0, width), each `length` long and line_step apart, to one panel. Lines beyond `width`
// repeat the last one; tiles never use them.
template <int kStride, typename T>
void pack_lines(const T* in, int64_t line_step, int width, int64_t length, T* HWY_RESTRICT out) {
  const PanelTag<T, kStride> d;
  constexpr int kLanes = static_cast<int>(hn::MaxLanes(d));
  constexpr int kBlock = static_cast<int>(std::min<size_t>(16 / sizeof(T), kLanes));
  constexpr int kGroups = (kStride + kLanes - 1) / kLanes;
  const T* lines[kGroups * kLanes];
  for (int i = 0; i < kGroups * kLanes; ++i) lines[i] = in + std::min(i, width - 1) * line_step;
  int64_t k = 0;
  // A store may overwrite the start of the next k, whose values are written later. The last store
  // may not.
  for (; k + kBlock < length; k += kBlock) {
    for (int group = kGroups - 1; group >= 0; --group) {
      const T* const* first = lines + group * kLanes;
      T* to = out + k * kStride + group * kLanes;
      const auto v0 = load_lines(d, first, k), v1 = load_lines(d, first + 1, k);
      if constexpr (kBlock == 2) {
        hn::StoreU(hn::InterleaveLower(d, v0, v1), d, to);
        hn::StoreU(hn::InterleaveUpper(d, v0, v1), d, to + kStride);
      } else {
        static_assert(kBlock == 4);
        const auto v2 = load_lines(d, first + 2, k), v3 = load_lines(d, first + 3, k);
        const auto even01 = hn::InterleaveLower(d, v0, v2), odd01 = hn::InterleaveLower(d, v1, v3);
        const auto even23 = hn::InterleaveUpper(d, v0, v2), odd23 = hn::InterleaveUpper(d, v1, v3);
        hn::StoreU(hn::InterleaveLower(d, even01, odd01), d, to);
        hn::StoreU(hn::InterleaveUpper(d, even01, odd01), d, to + kStride);
        hn::StoreU(hn::InterleaveLower(d, even23, odd23), d, to + 2 * kStride);
        hn::StoreU(hn::InterleaveUpper(d, even23, odd23), d, to + 3 * kStride);
      }
    }
  }
  for (; k < length; ++k) {
    for (int i = 0; i < kStride; ++i) out[k * kStride + i] = lines[i][k];
  }
}

#endif  // LOCKSTEP_SIMD_TARGET
}  // namespace HWY_NAMESPACE
}  // namespace lockstep
HWY_AFTER_NAMESPACE();
#endif
