// What does a sum in a low-precision format take of a small addend?
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "emulation/kernels/reduction.h"
#include "emulation/stats/update_stats.h"

namespace lockstep {

// Of `count` sums, old[i] + added(i), which were rounded to sum[i]. added: double of int64_t.
// The reductions have the shape of emulation/kernels/reduction.h.
template <typename T, typename Added>
UpdateStats measure_addition(int64_t count, const T* old, Added added, const T* sum) {
  const auto plus = [](double x, double y) { return x + y; };
  UpdateStats stats;
  std::vector<double> added_sq, old_sq, stagnant_sq;
  for (int64_t begin = 0; begin < count; begin += kReductionBlock) {
    const int64_t n = std::min(kReductionBlock, count - begin);
    const auto is_stagnant = [&](int64_t j) {
      return added(begin + j) != 0 && sum[begin + j] == old[begin + j];
    };
    const auto square = [&](int64_t j) { return added(begin + j) * added(begin + j); };
    const auto before = [&](int64_t j) { return static_cast<double>(old[begin + j]); };
    for (int64_t j = 0; j < n; ++j) stats.stagnant += is_stagnant(j);
    added_sq.push_back(reduce_fixed<double>(n, square, plus));
    old_sq.push_back(reduce_fixed<double>(
        n, [&](int64_t j) { return before(j) * before(j); }, plus));
    stagnant_sq.push_back(reduce_fixed<double>(
        n, [&](int64_t j) { return is_stagnant(j) ? square(j) : 0; }, plus));
  }
  stats.count = static_cast<uint64_t>(count);
  stats.update_sq = join_blocks(std::move(added_sq), plus);
  stats.weight_sq = join_blocks(std::move(old_sq), plus);
  stats.stagnant_sq = join_blocks(std::move(stagnant_sq), plus);
  return stats;
}

}  // namespace lockstep
