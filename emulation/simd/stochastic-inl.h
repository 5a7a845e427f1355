// Philox in vectors: the random bits of whole groups of 64 elements, in the layout of
// emulation/stochastic.h. Included once per target.
#if defined(LOCKSTEP_STOCHASTIC_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef LOCKSTEP_STOCHASTIC_INL_H
#undef LOCKSTEP_STOCHASTIC_INL_H
#else
#define LOCKSTEP_STOCHASTIC_INL_H
#endif

#include <hwy/highway.h>

#include "emulation/stochastic.h"

HWY_BEFORE_NAMESPACE();
namespace lockstep {
namespace HWY_NAMESPACE {
#if LOCKSTEP_SIMD_TARGET
namespace hn = hwy::HWY_NAMESPACE;

// Both halves of the 64-bit products a * b of all lanes.
template <class D, class V>
HWY_INLINE void multiply_wide(D d, V a, V b, V& high, V& low) {
  const hn::RepartitionToWide<D> dw;
  const auto even = hn::MulEven(a, b);
  const auto odd = hn::MulEven(hn::BitCast(d, hn::ShiftRight<32>(hn::BitCast(dw, a))), b);
  high = hn::OddEven(hn::BitCast(d, odd), hn::BitCast(d, hn::ShiftRight<32>(even)));
  low = hn::OddEven(hn::BitCast(d, hn::ShiftLeft<32>(odd)), hn::BitCast(d, even));
}

// bits[j] = stochastic_bits(key, first + j), j in [0, 64 groups). Requires: 64 divides `first`.
HWY_INLINE void fill_stochastic_bits(const StochasticArrayKey& key, uint64_t first, int64_t groups,
                                     uint32_t* HWY_RESTRICT bits) {
  // Philox's constants, as in src/core/random.cc, whose results the tests compare.
  constexpr uint32_t kMultiplier0 = 0xD2511F53u, kMultiplier1 = 0xCD9E8D57u;
  constexpr uint32_t kWeyl0 = 0x9E3779B9u, kWeyl1 = 0xBB67AE85u;
  constexpr int kRounds = 10;
  constexpr int64_t kRow = kStochasticRow;
  const hn::ScalableTag<uint32_t> du;
  const auto multiplier0 = hn::Set(du, kMultiplier0), multiplier1 = hn::Set(du, kMultiplier1);
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(du));
  for (int64_t group = 0; group < groups; ++group) {
    // A multiple of 16, so its low word never wraps within a row.
    const uint64_t block = first / kStochasticGroup * kStochasticRow + group * kStochasticRow;
    for (int64_t l = 0; l < kRow; l += lanes) {
      auto c0 = hn::Iota(du, static_cast<uint32_t>(block + static_cast<uint64_t>(l)));
      auto c1 = hn::Set(du, static_cast<uint32_t>(block >> 32));
      auto c2 = hn::Set(du, key.nonce[0]);
      auto c3 = hn::Set(du, key.nonce[1]);
      uint32_t key0 = key.key[0], key1 = key.key[1];
      for (int round = 0; round < kRounds; ++round) {
        auto high0 = c0, low0 = c0, high1 = c0, low1 = c0;
        multiply_wide(du, c0, multiplier0, high0, low0);
        multiply_wide(du, c2, multiplier1, high1, low1);
        c0 = hn::Xor(hn::Xor(high1, c1), hn::Set(du, key0));
        c1 = low1;
        c2 = hn::Xor(hn::Xor(high0, c3), hn::Set(du, key1));
        c3 = low0;
        key0 += kWeyl0;
        key1 += kWeyl1;
      }
      uint32_t* out = bits + group * static_cast<int64_t>(kStochasticGroup) + l;
      hn::StoreU(c0, du, out);
      hn::StoreU(c1, du, out + kRow);
      hn::StoreU(c2, du, out + 2 * kRow);
      hn::StoreU(c3, du, out + 3 * kRow);
    }
  }
}

#endif  // LOCKSTEP_SIMD_TARGET
}  // namespace HWY_NAMESPACE
}  // namespace lockstep
HWY_AFTER_NAMESPACE();
#endif  // per-target include guard
