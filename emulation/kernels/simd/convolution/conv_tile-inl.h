// Register tiles of the direct convolution: one fused multiply-add per term and output, terms in
// the order of emulation/kernels/args/conv_args.h, vectors across outputs. Included once per
// instruction set.
//
//   PixelTile    y, dx: rows are channels of the result, whose weights are broadcast; vectors run
//                over neighbouring pixels of a plane of factors
//   WeightTile   dw: rows are taps, whose pixel is broadcast from where it lies in the padded
//   image;
//                vectors run over output channels of a dy that has them last
#if defined(LOCKSTEP_CONV_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LOCKSTEP_CONV_TILE_INL_H_
#undef LOCKSTEP_CONV_TILE_INL_H_
#else
#define LOCKSTEP_CONV_TILE_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>

#include "emulation/kernels/simd/convolution/conv_planes.h"
#include "emulation/kernels/simd/rounding/narrow-inl.h"
#include "emulation/kernels/simd/targets.h"

HWY_BEFORE_NAMESPACE();
namespace lockstep {
namespace HWY_NAMESPACE {
#if LOCKSTEP_SIMD_TARGET
namespace hn = hwy::HWY_NAMESPACE;

// Sums that fit into the registers in addition to the factors of a step.
constexpr int kConvSums = HWY_TARGET == HWY_AVX3 ? 28 : 12;

template <typename T>
struct PixelTileArgs {
  int64_t terms;           // of a sum
  const T* weights;        // term t of row i at weights[t * kRows + i]
  const T* pixels;         // term t of column j at pixels[offsets[t] + j]; read up to kCols
  const int64_t* offsets;  // may be odd: loads need no alignment
  // Column j of the first and of the last of every kOneCopyTaps terms is replaced by zero where
  // this is zero; read up to kCols. Null: nothing is replaced. Otherwise terms is a multiple of
  // kOneCopyTaps.
  const T *first_inside, *last_inside;
  int rows, cols;
  T* out;  // row i, column j at out[i * row_step + j]
  int64_t row_step;
};

template <typename T>
struct PixelTile {
  using D = hn::ScalableTag<T>;
  using V = hn::Vec<D>;
  static constexpr int kLanes = static_cast<int>(hn::MaxLanes(D()));
  static constexpr int kVectors = 2, kRows = kConvSums / kVectors, kCols = kVectors * kLanes;
  // A single row has so many vectors: an addition waits for the one before it.
  static constexpr int kRowVectors = 8, kRowCols = kRowVectors * kLanes;

  template <int kM, int kN, bool kHasEnds>
  static HWY_NOINLINE void run(const PixelTileArgs<T>& t) {
    const D d;
    const auto mask = hn::FirstN(d, static_cast<size_t>(t.cols - (kN - 1) * kLanes));
    V acc[kM][kN];
    HWY_UNROLL(16)
    for (int i = 0; i < kM; ++i) {
      HWY_UNROLL(8)
      for (int j = 0; j < kN; ++j) acc[i][j] = hn::Zero(d);
    }
    hn::Mask<D> in_first[kN], in_last[kN];
    if constexpr (kHasEnds) {
      HWY_UNROLL(8)
      for (int j = 0; j < kN; ++j) {
        in_first[j] = hn::Ne(hn::LoadU(d, t.first_inside + j * kLanes), hn::Zero(d));
        in_last[j] = hn::Ne(hn::LoadU(d, t.last_inside + j * kLanes), hn::Zero(d));
      }
    }
    const T* HWY_RESTRICT weights = t.weights;
    const auto add_term = [&](int64_t k, const hn::Mask<D>* inside) HWY_ATTR {
      const T* HWY_RESTRICT from = t.pixels + t.offsets[k];
      V pixels[kN];
      HWY_UNROLL(8)
      for (int j = 0; j < kN; ++j) {
        pixels[j] = hn::LoadU(d, from + j * kLanes);
        if (inside != nullptr) pixels[j] = hn::IfThenElseZero(inside[j], pixels[j]);
      }
      HWY_UNROLL(16)
      for (int i = 0; i < kM; ++i) {
        const V weight = hn::Set(d, weights[i]);
        HWY_UNROLL(8)
        for (int j = 0; j < kN; ++j) acc[i][j] = hn::MulAdd(weight, pixels[j], acc[i][j]);
      }
      weights += kRows;
    };
    if constexpr (kHasEnds) {
      for (int64_t k = 0; k < t.terms; k += kOneCopyTaps) {
        add_term(k, in_first);
        add_term(k + 1, nullptr);
        add_term(k + 2, in_last);
      }
    } else {
      for (int64_t k = 0; k < t.terms; ++k) add_term(k, nullptr);
    }
    HWY_UNROLL(16)
    for (int i = 0; i < kM; ++i) {
      HWY_UNROLL(8)
      for (int j = 0; j < kN; ++j) {
        T* out = t.out + i * t.row_step + j * kLanes;
        const V sum = canonical(d, acc[i][j]);
        if (j + 1 == kN) {
          hn::BlendedStore(sum, mask, d, out);
        } else {
          hn::StoreU(sum, d, out);
        }
      }
    }
  }

  using Function = void (*)(const PixelTileArgs<T>&);
  template <int... kI>
  static constexpr std::array<std::array<Function, 4>, kRows> table(
      std::integer_sequence<int, kI...>) {
    return {{{&run<kI + 1, 1, false>, &run<kI + 1, 2, false>, &run<kI + 1, 1, true>,
              &run<kI + 1, 2, true>}...}};
  }
  template <int... kI>
  static constexpr std::array<std::array<Function, 2>, kRowVectors> row_table(
      std::integer_sequence<int, kI...>) {
    return {{{&run<1, kI + 1, false>, &run<1, kI + 1, true>}...}};
  }
  void operator()(const PixelTileArgs<T>& t) const {
    if (t.rows == 1) {
      static constexpr auto kTable = row_table(std::make_integer_sequence<int, kRowVectors>());
      const int last = (t.cols - 1) / kLanes, ends = t.first_inside != nullptr ? 1 : 0;
      return kTable[static_cast<size_t>(last)][static_cast<size_t>(ends)](t);
    }
    static constexpr auto kTable = table(std::make_integer_sequence<int, kRows>());
    const int vectors = t.cols > kLanes ? 1 : 0, ends = t.first_inside != nullptr ? 2 : 0;
    kTable[static_cast<size_t>(t.rows - 1)][static_cast<size_t>(vectors + ends)](t);
  }
};

// A group is kTaps neighbouring pixels of one row of one channel.
constexpr int kMostGroups = 8;
template <typename T>
struct WeightTileArgs {
  const T* image;          // padded
  const int64_t* offsets;  // position of each group's first tap in it for output pixel 0
  int groups;
  int64_t rows, cols;          // output pixels
  int64_t row_step, col_step;  // of the image, from one of them to the next
  const T* dy;                 // pixel i, output channel o at dy[i * channels + o]
  T* sums;                     // group g, tap t, channel o at sums[(g * kTaps + t) * channels + o]
  bool begun;                  // false: the sums start from +0
};

// kTaps: 1 or 3; kN: vectors of output channels.
template <typename T, int kTaps, int kN>
struct WeightTile {
  using D = hn::ScalableTag<T>;
  using V = hn::Vec<D>;
  static constexpr int kLanes = static_cast<int>(hn::MaxLanes(D()));
  static constexpr int kChannels = kN * kLanes;
  static constexpr int kGroups = std::min(kMostGroups, kConvSums / (kTaps * kN));

  template <int kG>
  static HWY_NOINLINE void run(const WeightTileArgs<T>& t) {
    const D d;
    constexpr int kM = kG * kTaps;
    V acc[kM][kN];
    HWY_UNROLL(24)
    for (int i = 0; i < kM; ++i) {
      HWY_UNROLL(2)
      for (int j = 0; j < kN; ++j) {
        acc[i][j] = t.begun ? hn::LoadU(d, t.sums + i * kChannels + j * kLanes) : hn::Zero(d);
      }
    }
    const T* HWY_RESTRICT dy = t.dy;
    for (int64_t p = 0; p < t.rows; ++p) {
      const T* image[kG];
      HWY_UNROLL(8)
      for (int g = 0; g < kG; ++g) image[g] = t.image + t.offsets[g] + p * t.row_step;
      int64_t at = 0;
      for (int64_t q = 0; q < t.cols; ++q, at += t.col_step, dy += kChannels) {
        V channels[kN];
        HWY_UNROLL(2)
        for (int j = 0; j < kN; ++j) channels[j] = hn::LoadU(d, dy + j * kLanes);
        HWY_UNROLL(8)
        for (int g = 0; g < kG; ++g) {
          HWY_UNROLL(3)
          for (int s = 0; s < kTaps; ++s) {
            const V pixel = hn::Set(d, image[g][at + s]);
            HWY_UNROLL(2)
            for (int j = 0; j < kN; ++j) {
              acc[g * kTaps + s][j] = hn::MulAdd(pixel, channels[j], acc[g * kTaps + s][j]);
            }
          }
        }
      }
    }
    HWY_UNROLL(24)
    for (int i = 0; i < kM; ++i) {
      HWY_UNROLL(2)
      for (int j = 0; j < kN; ++j) {
        hn::StoreU(acc[i][j], d, t.sums + i * kChannels + j * kLanes);
      }
    }
  }

  using Function = void (*)(const WeightTileArgs<T>&);
  template <int... kI>
  static constexpr std::array<Function, kGroups> table(std::integer_sequence<int, kI...>) {
    return {{&run<kI + 1>...}};
  }
  void operator()(const WeightTileArgs<T>& t) const {
    static constexpr auto kTable = table(std::make_integer_sequence<int, kGroups>());
    kTable[static_cast<size_t>(t.groups - 1)](t);
  }
};

#endif  // LOCKSTEP_SIMD_TARGET
}  // namespace HWY_NAMESPACE
}  // namespace lockstep
HWY_AFTER_NAMESPACE();
#endif
