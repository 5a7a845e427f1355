// Register tiles of the vector gemm for chains whose every rounding is declared: sums narrower than
// float, chains that round their products first, and events. Included once per instruction set.
//
//   fused          x = a * b + acc rounded to odd, then ONCE to nearest even in the accumulator's
//                  format. An FP32 fused multiply-add followed by a rounding would round twice.
//   unfused        p = a * b, rounded; x = p + acc, rounded
//   float lanes    p <= 22; AVX-512: of the sums rounded down and up take the one with an odd last
//                  bit; AVX2: TwoSum, then the last bit set wherever its error is nonzero
//   double lanes   the same through 53 bits: any float input, all events
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
#include <type_traits>
#include <utility>

#include "emulation/accumulator/fast_round.h"
#include "emulation/kernels/kernel_set.h"
#include "emulation/kernels/simd/products/gemm_tile-inl.h"
#include "emulation/kernels/simd/rounding/narrow-inl.h"
#include "emulation/kernels/simd/targets.h"
#include "emulation/number/number_format.h"

HWY_BEFORE_NAMESPACE();
namespace lockstep {
namespace HWY_NAMESPACE {
#if LOCKSTEP_SIMD_TARGET
namespace hn = hwy::HWY_NAMESPACE;

// `kFused`: otherwise every step rounds its product before the sum.
template <class FloatRound, bool kFused>
class NarrowTile {
 public:
  using Element = float;
  static constexpr int kLanes = static_cast<int>(hn::MaxLanes(FloatTag()));
  // The sums of a step go through four or five operations, one after the other; many chains at once
  // hide this latency. AVX-512 holds 24 of them in 32 registers.
  static constexpr int kRows = HWY_TARGET == HWY_AVX3 ? 12 : 4, kVectors = 2;
  static constexpr int kCols = kVectors * kLanes;
  static constexpr bool kWantsFacts = true, kWholeDepth = false;

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
  // is checked for infinities. AVX-512 rounds any fused sum to odd. Otherwise products must be
  // exact in float: factors of at most 12 bits (FP16, BF16 and TF32 have fewer) and products p with
  // 2^-126 <= |p| < 2^126 or 0, so that the last bit of p, 2^-148 at least, is no smaller than
  // float's smallest subnormal, and TwoSum does not overflow.
  static bool is_fast(const TileArgs<float>& t) {
    const PanelFacts &a = *t.a_facts, &b = *t.b_facts;
    if (t.events != nullptr && !(is_finite(a) && is_finite(b) && finite_start(t))) return false;
    if (kFused && HWY_TARGET == HWY_AVX3) return true;
    constexpr uint32_t kLow12 = 0xfff;
    if (((a.low_bits | b.low_bits) & kLow12) != 0) return false;
    // Products beyond these bounds round to the right zero or infinity in FP16, exact or not.
    if (!kFused && t.events == nullptr) return !t.load_c || is_start_rounded(t);
    if (!is_finite(a) || !is_finite(b)) return false;
    if (a.largest == 0 || b.largest == 0) return true;
    const ProductExponents products(a, b);
    constexpr int kLowest = -126, kHighest = 125;
    return !has_subnormals(a) && !has_subnormals(b) && products.lowest >= kLowest &&
           products.highest <= kHighest;
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

  // Attention starts from sums that it has scaled: they may have more bits than the format.
  static bool is_start_rounded(const TileArgs<float>& t) {
    const FloatTag d;
    const FloatRound round;
    for (int i = 0; i < t.rows; ++i) {
      for (int j = 0; j < t.cols; j += kLanes) {
        const auto mask = hn::FirstN(d, static_cast<size_t>(t.cols - j));
        const FloatVec c = hn::MaskedLoad(mask, d, t.c + i * t.ldc + j);
        if (!hn::AllTrue(d, hn::Or(hn::Eq(round(d, c), c), hn::IsNaN(c)))) return false;
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
    static_assert(kFused || std::is_same_v<FloatRound, ToFp16>);
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
          const auto rounded = [&](FloatVec exact) HWY_ATTR {
            const FloatVec result = round(d, exact);
            if (kEvents) {
              const U bits = hn::BitCast(du, exact);
              changed[i][j] = hn::Or(changed[i][j], hn::Xor(bits, hn::BitCast(du, result)));
              const auto zero = hn::RebindMask(du, hn::Eq(result, hn::Zero(d)));
              vanished[i][j] = hn::Or(vanished[i][j], hn::IfThenElseZero(zero, bits));
            }
            return result;
          };
          if constexpr (kFused) {
            acc[i][j] = rounded(multiply_add_to_odd(d, x, row[j], acc[i][j]));
          } else {
            const FloatVec product = rounded(hn::Mul(x, row[j]));
            // Sums of two FP16 numbers may be rounded twice: 24 >= 2 * 11 + 2. Events need the
            // exact sum.
            acc[i][j] =
                rounded(kEvents ? add_to_odd(d, product, acc[i][j]) : hn::Add(product, acc[i][j]));
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

  // With finite inputs, an infinite sum came from an overflow and stays infinite, or becomes NaN if
  // a product overflows to the other infinity. A float that overflowed already before its rounding
  // is inexact although the rounding changed no bit.
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
      if (!std::isfinite(sums[i])) events[i] |= kStepToInfinity | kStepInexact;
      if (std::isnan(sums[i])) events[i] |= kStepNan;
    }
  }

  // Any inputs, a few rows and one vector of doubles at a time.
  void double_tile(const TileArgs<float>& t) const {
    constexpr int kAtOnce = 4;
    static_assert(kRows % kAtOnce == 0);
    const int step = static_cast<int>(hn::MaxLanes(DoubleTag()));
    for (int i = 0; i < t.rows;) {
      const int rows = t.rows - i < kAtOnce ? 1 : kAtOnce;
      for (int j = 0; j < t.cols; j += step) {
        rows == 1 ? double_rows<1>(t, i, j) : double_rows<kAtOnce>(t, i, j);
      }
      i += rows;
    }
  }

  template <int kM>
  HWY_NOINLINE void double_rows(const TileArgs<float>& t, int first, int j) const {
    const DoubleTag d;
    const hn::Rebind<float, DoubleTag> df;
    const hn::RebindToSigned<DoubleTag> di;
    const int cols = std::min(static_cast<int>(hn::MaxLanes(d)), t.cols - j);
    const auto mask = hn::FirstN(df, static_cast<size_t>(cols));
    const auto infinity = hn::Set(d, std::numeric_limits<double>::infinity());
    float* const c = t.c + first * t.ldc + j;
    DoubleVec acc[kM];
    hn::Vec<decltype(di)> events[kM];
    HWY_UNROLL(4)
    for (int i = 0; i < kM; ++i) {
      acc[i] = t.load_c ? hn::PromoteTo(d, hn::MaskedLoad(mask, df, c + i * t.ldc)) : hn::Zero(d);
      events[i] = hn::Zero(di);
    }
    for (int64_t k = 0; k < t.k; ++k) {
      const DoubleVec b = hn::PromoteTo(d, hn::LoadU(df, t.b + k * t.ldb + j));
      HWY_UNROLL(4)
      for (int i = 0; i < kM; ++i) {
        const auto bit = [&](auto event_mask, int64_t event) HWY_ATTR {
          return hn::IfThenElseZero(hn::RebindMask(di, event_mask), hn::Set(di, event));
        };
        const auto rounded = [&](DoubleVec exact) HWY_ATTR {
          const DoubleVec result = exact_round_(d, exact);
          const auto finite = hn::Lt(hn::Abs(exact), infinity);
          const auto overflow = hn::And(finite, hn::Eq(hn::Abs(result), infinity));
          const auto inexact = hn::Ne(result, exact);
          const auto to_zero = hn::And(inexact, hn::Eq(result, hn::Zero(d)));
          const auto seen =
              hn::Or(hn::Or(bit(overflow, kStepToInfinity), bit(inexact, kStepInexact)),
                     hn::Or(bit(to_zero, kStepToZero), bit(hn::IsNaN(result), kStepNan)));
          events[i] = hn::Or(events[i], seen);
          return result;
        };
        const DoubleVec a = hn::Set(d, static_cast<double>(t.a[k * kRows + first + i]));
        DoubleVec term = hn::Mul(a, b);
        if (!kFused) term = rounded(term);
        const DoubleVec sum = hn::Add(acc[i], term);
        acc[i] = rounded(to_odd(d, sum, two_sum_error(acc[i], term, sum)));
      }
    }
    for (int i = 0; i < kM; ++i) {
      hn::BlendedStore(hn::DemoteTo(df, canonical(d, acc[i])), mask, df, c + i * t.ldc);
      if (t.events == nullptr) continue;
      alignas(64) int64_t seen[hn::MaxLanes(di)];
      hn::Store(events[i], di, seen);
      for (int lane = 0; lane < cols; ++lane) {
        t.events[(first + i) * t.lde + j + lane] |= static_cast<uint8_t>(seen[lane]);
      }
    }
  }

  DoubleRound exact_round_;
  bool has_float_path_;
};

// Calls run(tile) with the tile of this chain; false if there is none.
template <class Run>
bool run_narrow(const GemmArgs<float>& g, Run run) {
  const Format& f = *g.accumulator->format;
  if (!g.accumulator->adds() || f.is_fp64() || !FastRound::covers(f)) return false;
  const bool is_fp16 = f.precision == kFp16.precision && f.emin == kFp16.emin;
  if (g.accumulator->kind == AccumulatorKind::kUnfusedChain) {
    run(NarrowTile<ToFp16, false>(f, is_fp16));
  } else if (is_fp16) {
    run(NarrowTile<ToFp16, true>(f, true));
  } else {
    run(NarrowTile<ToBf16, true>(f, f.precision == kBf16.precision && f.emin == kBf16.emin));
  }
  return true;
}

#endif  // LOCKSTEP_SIMD_TARGET
}  // namespace HWY_NAMESPACE
}  // namespace lockstep
HWY_AFTER_NAMESPACE();
#endif
