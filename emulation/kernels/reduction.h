// The order in which a long sum is formed.
// Every reduction in Lockstep uses one fixed shape, so that the bits depend neither on threads nor
// on vector width. The elements, in their order, are cut into blocks of 4096. Inside a block,
// element i goes to virtual lane i mod 16; each lane adds its elements in ascending order. The 16
// lanes join pairwise (i with i+8, then i+4, i+2, i+1). The block sums join in a balanced binary
// tree over block indices.
//
// Error: |s - sum x| <= gamma_n sum|x| with n = 256 + 4 + ceil(log2(blocks)), gamma_n = nu/(1-nu),
//        u the accumulator's unit roundoff (N. Higham, "Accuracy and Stability", 2nd ed., §4.2).
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "emulation/accumulator/accumulator.h"

namespace lockstep {

inline constexpr int64_t kReductionLanes = 16;
inline constexpr int64_t kReductionBlock = 4096;

// Joins block sums in the fixed tree: pairs (0,1), (2,3), ... level by level; an odd one is
// carried. `add(x, y)` is the accumulator's addition. Returns 0 for no blocks.
template <typename T, typename Add>
T join_blocks(std::vector<T> sums, Add add) {
  if (sums.empty()) return T(0);
  while (sums.size() > 1) {
    size_t out = 0;
    for (size_t i = 0; i < sums.size(); i += 2) {
      sums[out++] = i + 1 < sums.size() ? add(sums[i], sums[i + 1]) : sums[i];
    }
    sums.resize(out);
  }
  return sums[0];
}

// Sum of term(i), i in [0, count), in the fixed shape. The sum has type `T`.
template <typename T, typename Term, typename Add>
T reduce_fixed(int64_t count, Term term, Add add) {
  std::vector<T> blocks;
  blocks.reserve(static_cast<size_t>((count + kReductionBlock - 1) / kReductionBlock));
  for (int64_t begin = 0; begin < count; begin += kReductionBlock) {
    const int64_t end = begin + kReductionBlock < count ? begin + kReductionBlock : count;
    T lanes[kReductionLanes] = {};
    int64_t i = begin;
    for (; i + kReductionLanes <= end; i += kReductionLanes) {
      for (int64_t l = 0; l < kReductionLanes; ++l) lanes[l] = add(lanes[l], term(i + l));
    }
    for (int64_t l = 0; i < end; ++i, ++l) lanes[l] = add(lanes[l], term(i));
    for (int64_t half = kReductionLanes / 2; half > 0; half /= 2) {
      for (int64_t l = 0; l < half; ++l) lanes[l] = add(lanes[l], lanes[l + half]);
    }
    blocks.push_back(lanes[0]);
  }
  return join_blocks(std::move(blocks), add);
}

}  // namespace lockstep
