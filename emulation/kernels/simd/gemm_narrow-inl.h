// Register tiles of the vector gemm whose running sums are narrower than float: every step is the
// exact product plus the exact sum rounded ONCE, to the accumulator's format. An FP32 fused
// multiply-add followed by a rounding would round twice. Included once per instruction set.
//
//   step in float lanes     x = a * b + acc rounded to odd in 24 bits, then to nearest even in p <=
//   22 step in double lanes    the same through 53 bits: any float input, all events round to odd
//   AVX-512: of the sums rounded down and up take the one with an odd last bit
//                           AVX2: TwoSum, then the last bit set wherever its error is nonzero
// Source of round to odd: S. Boldo, G. Melquiond, IEEE Transactions on Computers 57(4), 2008.
#if defined(LOCKSTEP_GEMM_NARROW_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LOCKSTEP_GEMM_NARROW_INL_H_
#undef LOCKSTEP_GEMM_NARROW_INL_H_
#else
#define LOCKSTEP_GEMM_NARROW_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>

#include "emulation/kernels/kernel_set.h"
#include "emulation/kernels/simd/gemm_tile-inl.h"
#include "emulation/kernels/simd/narrow-inl.h"
#include "emulation/kernels/simd/targets.h"

HWY_BEFORE_NAMESPACE();
namespace lockstep {
namespace HWY_NAMESPACE {
#if LOCKSTEP_SIMD_TARGET
namespace hn = hwy::HWY_NAMESPACE;

template <class FloatRound>
class NarrowTile {
 public:
  using Element = float;
  static constexpr int kLanes = static_cast<int>(hn::MaxLanes(FloatTag()));
  // The sums of a step go through four or five operations, one after the other; many chains at once
  // hide this latency. AVX-512 holds 24 of them in 32 registers.
  static constexpr int kRows = HWY_TARGET == HWY_AVX3 ? 12 : 4, kVectors = 2;
  static constexpr int kCols = kVectors * kLanes;
  static constexpr bool kWantsFacts = true;

  // `has_float_path`: FloatRound rounds to this format.
  NarrowTile(const Format& format, bool has_float_path)
      : exact_round_(format), has_float_path_(has_float_path) {}

  void operator()(const TileArgs<float>& t) const {
    const bool fast = has_float_path_ && is_fast(t);
    if (!fast) return double_tile(t);
    static constexpr auto kTable = table(std::make_integer_sequence<int, kRows>());
    const auto& functions = kTable[static_cast<size_t>(t.rows - 1)];
    functions[(t.cols > kLanes ? 1 : 0) + (t.events != nullptr ? 2 : 0)](t);
  }

 private:
  // Whether this tile may run in float lanes. Events need finite inputs, because only the final sum
  // is checked for infinities. AVX2 needs exact products and an exact TwoSum: factors of at most 12
  // bits (FP16, BF16 and TF32 have fewer) and products p with 2^-126 <= |p| < 2^126 or 0, so that
  // the last bit of p, 2^-148 at least, is no smaller than float's smallest subnormal.
  static bool is_fast(const TileArgs<float>& t) {
    const PanelFacts &a = *t.a_facts, &b = *t.b_facts;
    if (t.events != nullptr && !(is_finite(a) && is_finite(b) && finite_start(t))) return false;
#if HWY_TARGET == HWY_AVX3
    return true;
#else
    constexpr uint32_t kLow12 = 0xfff, kBias = 127;
    if (!is_finite(a) || !is_finite(b) || ((a.low_bits | b.low_bits) & kLow12) != 0) return false;
    if (a.largest == 0 || b.largest == 0) return true;
    const auto exponent = [](uint32_t bits) { return static_cast<int>(bits >> 23); };
    if (exponent(a.smallest) == 0 || exponent(b.smallest) == 0) return false;
    const int low = exponent(a.smallest) + exponent(b.smallest) - 2 * static_cast<int>(kBias);
    const int high = exponent(a.largest) + exponent(b.largest) - 2 * static_cast<int>(kBias);
    return low >= -126 && high + 2 <= 126;
#endif
  }

  static bool finite_start(const TileArgs<float>& t) {
    if (!t.load_c) return true;
    for (int i = 0; i < t.rows; ++i) {
      for (int j = 0; j < t.cols; ++j) {
        if (!std::isfinite(t.c[i * t.ldc + j])) return false;
      }
    }
    return true;
  }

  using Function = void (*)(const TileArgs<float>&);
  template <int... kI>
  static constexpr std::array<std::array<Function, 4>, kRows> table(
      std::integer_sequence<int, kI...>) {
    return {{{&float_tile<kI + 1, 1, false>, &float_tile<kI + 1, 2, false>,
              &float_tile<kI + 1, 1, true>, &float_tile<kI + 1, 2, true>}...}};
  }

  template <int kM, int kN, bool kEvents>
  static HWY_NOINLINE void float_tile(const TileArgs<float>& t) {
    const FloatTag d;
    const hn::RebindToUnsigned<FloatTag> du;
    using U = hn::Vec<decltype(du)>;
    const FloatRound round;
    const auto mask = hn::FirstN(d, static_cast<size_t>(t.cols - (kN - 1) * kLanes));
    FloatVec acc[kM][kN];
    U changed[kM][kN], vanished[kM][kN];  // bits that some rounding changed; that became zero
    HWY_UNROLL(12)
    for (int i = 0; i < kM; ++i) {
      HWY_UNROLL(2)
      for (int j = 0; j < kN; ++j) {
        const float* c = t.c + i * t.ldc + j * kLanes;
        acc[i][j] = !t.load_c     ? hn::Zero(d)
                    : j + 1 == kN ? hn::MaskedLoad(mask, d, c)
                                  : hn::LoadU(d, c);
        acc[i][j] = canonical(d, acc[i][j]);
        if (kEvents) changed[i][j] = vanished[i][j] = hn::Zero(du);
      }
    }
    const float* HWY_RESTRICT a = t.a;
    const float* HWY_RESTRICT b = t.b;
    for (int64_t k = 0; k < t.k; ++k, a += kRows, b += t.ldb) {
      FloatVec row[kN];
      HWY_UNROLL(2)
      for (int j = 0; j < kN; ++j) row[j] = hn::LoadU(d, b + j * kLanes);
      HWY_UNROLL(12)
      for (int i = 0; i < kM; ++i) {
        const FloatVec x = hn::Set(d, a[i]);
        HWY_UNROLL(2)
        for (int j = 0; j < kN; ++j) {
          const FloatVec exact = multiply_add_to_odd(d, x, row[j], acc[i][j]);
          acc[i][j] = round(d, exact);
          if (kEvents) {
            const U bits = hn::BitCast(du, exact);
            changed[i][j] = hn::Or(changed[i][j], hn::Xor(bits, hn::BitCast(du, acc[i][j])));
            const auto zero = hn::RebindMask(du, hn::Eq(acc[i][j], hn::Zero(d)));
            vanished[i][j] = hn::Or(vanished[i][j], hn::IfThenElseZero(zero, bits));
          }
        }
      }
    }
    HWY_UNROLL(12)
    for (int i = 0; i < kM; ++i) {
      HWY_UNROLL(2)
      for (int j = 0; j < kN; ++j) {
        float* c = t.c + i * t.ldc + j * kLanes;
        const FloatVec sum = canonical(d, acc[i][j]);
        if (j + 1 == kN) {
          hn::BlendedStore(sum, mask, d, c);
        } else {
          hn::StoreU(sum, d, c);
        }
        if (kEvents) {
          const int cols = std::min(kLanes, t.cols - j * kLanes);
          store_events(sum, changed[i][j], vanished[i][j], cols, t.events + i * t.lde + j * kLanes);
        }
      }
    }
  }

  // With finite inputs, an infinite sum came from an overflow and stays infinite. A float that
  // overflowed already before its rounding is inexact although the rounding changed no bit.
  static void store_events(FloatVec sum, hn::Vec<hn::RebindToUnsigned<FloatTag>> changed,
                           hn::Vec<hn::RebindToUnsigned<FloatTag>> vanished, int cols,
                           uint8_t* events) {
    const FloatTag d;
    const hn::RebindToUnsigned<FloatTag> du;
    alignas(64) float sums[kLanes];
    alignas(64) uint32_t changed_bits[kLanes], vanished_bits[kLanes];
    hn::Store(sum, d, sums);
    hn::Store(changed, du, changed_bits);
    hn::Store(vanished, du, vanished_bits);
    for (int i = 0; i < cols; ++i) {
      if (changed_bits[i] != 0) events[i] |= kStepInexact;
      if ((vanished_bits[i] & 0x7fffffffu) != 0) events[i] |= kStepToZero;
      if (std::isinf(sums[i])) events[i] |= kStepToInfinity | kStepInexact;
    }
  }

  // Any inputs, one row and one vector of doubles at a time.
  void double_tile(const TileArgs<float>& t) const {
    const DoubleTag d;
    const hn::Rebind<float, DoubleTag> df;
    const hn::RebindToSigned<DoubleTag> di;
    const int step = static_cast<int>(hn::MaxLanes(d));
    const auto infinity = hn::Set(d, std::numeric_limits<double>::infinity());
    const auto bit = [&](auto mask, int64_t event) {
      return hn::IfThenElseZero(hn::RebindMask(di, mask), hn::Set(di, event));
    };
    for (int i = 0; i < t.rows; ++i) {
      for (int j = 0; j < t.cols; j += step) {
        const int cols = std::min(step, t.cols - j);
        float* c = t.c + i * t.ldc + j;
        alignas(64) float values[hn::MaxLanes(df)] = {};
        if (t.load_c) std::copy(c, c + cols, values);
        DoubleVec acc = hn::PromoteTo(d, hn::Load(df, values));
        auto events = hn::Zero(di);
        for (int64_t k = 0; k < t.k; ++k) {
          const DoubleVec a = hn::Set(d, static_cast<double>(t.a[k * kRows + i]));
          const DoubleVec product =
              hn::Mul(a, hn::PromoteTo(d, hn::LoadU(df, t.b + k * t.ldb + j)));
          const DoubleVec sum = hn::Add(acc, product);
          const DoubleVec exact = to_odd(d, sum, two_sum_error(acc, product, sum));
          acc = exact_round_(d, exact);
          const auto finite = hn::Lt(hn::Abs(exact), infinity);
          const auto overflow = hn::And(finite, hn::Eq(hn::Abs(acc), infinity));
          const auto inexact = hn::Ne(acc, exact);
          const auto to_zero = hn::And(inexact, hn::Eq(acc, hn::Zero(d)));
          events = hn::Or(events,
                          hn::Or(hn::Or(bit(overflow, kStepToInfinity), bit(inexact, kStepInexact)),
                                 hn::Or(bit(to_zero, kStepToZero), bit(hn::IsNaN(acc), kStepNan))));
        }
        hn::Store(hn::DemoteTo(df, canonical(d, acc)), df, values);
        std::copy(values, values + cols, c);
        if (t.events == nullptr) continue;
        alignas(64) int64_t seen[hn::MaxLanes(di)];
        hn::Store(events, di, seen);
        for (int lane = 0; lane < cols; ++lane) {
          t.events[i * t.lde + j + lane] |= static_cast<uint8_t>(seen[lane]);
        }
      }
    }
  }

  DoubleRound exact_round_;
  bool has_float_path_;
};

// Calls run(tile) with the tile of this accumulator.
template <class Run>
void run_narrow(const GemmArgs<float>& g, Run run) {
  const Format& f = *g.accumulator->format;
  constexpr int kFp16P = 11, kFp16EMin = -14, kBf16P = 8, kBf16EMin = -126;
  if (f.precision == kFp16P && f.emin == kFp16EMin) return run(NarrowTile<ToFp16>(f, true));
  run(NarrowTile<ToBf16>(f, f.precision == kBf16P && f.emin == kBf16EMin));
}

#endif  // LOCKSTEP_SIMD_TARGET
}  // namespace HWY_NAMESPACE
}  // namespace lockstep
HWY_AFTER_NAMESPACE();
#endif
