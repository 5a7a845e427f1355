// Philox in vectors, and the random bits of whole groups of 64 elements in the layout of
// emulation/format/stochastic.h. Included once per target.
#if defined(LOCKSTEP_STOCHASTIC_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef LOCKSTEP_STOCHASTIC_INL_H
#undef LOCKSTEP_STOCHASTIC_INL_H
#else
#define LOCKSTEP_STOCHASTIC_INL_H
#endif

#include <hwy/highway.h>

#include <array>

#include "emulation/format/stochastic.h"

HWY_BEFORE_NAMESPACE();
namespace lockstep {
namespace HWY_NAMESPACE {
#if LOCKSTEP_SIMD_TARGET
namespace hn = hwy::HWY_NAMESPACE;

// Philox's state for as many counters as a vector has 64-bit lanes. The words are the low halves of
// the lanes. The high halves may hold anything: the multiplication does not read them.
struct PhiloxLanes {
  using D64 = hn::ScalableTag<uint64_t>;
  using V64 = hn::Vec<D64>;
  V64 c0, c1, c2, c3;

  // Counters first, first + 2, ...
  PhiloxLanes(uint64_t first, const std::array<uint32_t, 2>& nonce) {
    const D64 d;
    c0 = hn::Add(hn::Set(d, first), hn::Add(hn::Iota(d, 0), hn::Iota(d, 0)));
    c1 = hn::Set(d, first >> 32);
    c2 = hn::Set(d, uint64_t{nonce[0]});
    c3 = hn::Set(d, uint64_t{nonce[1]});
  }
  HWY_INLINE void round(uint64_t key0, uint64_t key1) {
    // Philox's constants, as in src/core/random.cc; the tests compare the results of both.
    constexpr uint32_t kMultiplier0 = 0xD2511F53u, kMultiplier1 = 0xCD9E8D57u;
    const D64 d;
    const hn::ScalableTag<uint32_t> du;
    const V64 product0 = hn::MulEven(hn::BitCast(du, c0), hn::Set(du, kMultiplier0));
    const V64 product1 = hn::MulEven(hn::BitCast(du, c2), hn::Set(du, kMultiplier1));
    c0 = hn::Xor3(hn::ShiftRight<32>(product1), c1, hn::Set(d, key0));
    c2 = hn::Xor3(hn::ShiftRight<32>(product0), c3, hn::Set(d, key1));
    c1 = product1;
    c3 = product0;
  }
};

// The keys of Philox's rounds.
struct PhiloxKeys {
  static constexpr uint32_t kRounds = 10;
  uint64_t keys[kRounds][2];

  explicit PhiloxKeys(const std::array<uint32_t, 2>& key) {
    constexpr uint32_t kWeyl0 = 0x9E3779B9u, kWeyl1 = 0xBB67AE85u;
    for (uint32_t round = 0; round < kRounds; ++round) {
      keys[round][0] = key[0] + round * kWeyl0;
      keys[round][1] = key[1] + round * kWeyl1;
    }
  }
};

// The four words of as many counters as a vector has 32-bit lanes: first, first + 1, ... of which
// none but the first is a multiple of 2^32. use(word 0, word 1, word 2, word 3).
template <class Use>
HWY_INLINE void philox_words(const PhiloxKeys& rounds, const std::array<uint32_t, 2>& nonce,
                             uint64_t first, Use use) {
  const hn::ScalableTag<uint32_t> du;
  PhiloxLanes even(first, nonce), odd(first + 1, nonce);
#pragma GCC unroll 10
  for (uint32_t round = 0; round < PhiloxKeys::kRounds; ++round) {
    even.round(rounds.keys[round][0], rounds.keys[round][1]);
    odd.round(rounds.keys[round][0], rounds.keys[round][1]);
  }
  const auto both = [&](PhiloxLanes::V64 low, PhiloxLanes::V64 high) HWY_ATTR {
    return hn::OddEven(hn::BitCast(du, hn::ShiftLeft<32>(high)), hn::BitCast(du, low));
  };
  use(both(even.c0, odd.c0), both(even.c1, odd.c1), both(even.c2, odd.c2), both(even.c3, odd.c3));
}

// bits[j] = stochastic_bits(key, first + j), j in [0, 64 groups). Requires: 64 divides `first`.
HWY_INLINE void fill_stochastic_bits(const StochasticArrayKey& key, uint64_t first, int64_t groups,
                                     uint32_t* HWY_RESTRICT bits) {
  constexpr int64_t kRow = kStochasticRow;
  const hn::ScalableTag<uint32_t> du;
  const PhiloxKeys rounds(key.key);
  constexpr int64_t kLanes32 = static_cast<int64_t>(hn::MaxLanes(hn::ScalableTag<uint32_t>()));
  for (int64_t group = 0; group < groups; ++group) {
    // A multiple of 16, so its low word never wraps within a row.
    const uint64_t block = first / kStochasticGroup * kStochasticRow + group * kStochasticRow;
    for (int64_t l = 0; l < kRow; l += kLanes32) {
      uint32_t* out = bits + group * static_cast<int64_t>(kStochasticGroup) + l;
      philox_words(rounds, key.nonce, block + static_cast<uint64_t>(l),
                   [&](auto w0, auto w1, auto w2, auto w3) HWY_ATTR {
                     hn::StoreU(w0, du, out);
                     hn::StoreU(w1, du, out + kRow);
                     hn::StoreU(w2, du, out + 2 * kRow);
                     hn::StoreU(w3, du, out + 3 * kRow);
                   });
    }
  }
}

#endif  // LOCKSTEP_SIMD_TARGET
}  // namespace HWY_NAMESPACE
}  // namespace lockstep
HWY_AFTER_NAMESPACE();
#endif  // per-target include guard
