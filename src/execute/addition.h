// Measures how much of a small addend a sum in a low-precision format takes.
#pragma once

#include <cstdint>

#include "emulation/kernels/reduction.h"
#include "emulation/stats/update_stats.h"

namespace lockstep {

// Measures `count` sums, old(i) + added(i), which were rounded to sum[i]. old, added: double of
// int64_t.
template <typename T, typename Old, typename Added>
UpdateStats measure_addition(int64_t count, Old old, Added added, const T* sum) {
  const auto plus = [](double x, double y) { return x + y; };
  const auto square = [&](int64_t i) { return added(i) * added(i); };
  const auto is_stagnant = [&](int64_t i) {
    return added(i) != 0 && static_cast<double>(sum[i]) == old(i);
  };
  UpdateStats stats;
  for (int64_t i = 0; i < count; ++i) stats.stagnant += is_stagnant(i);
  stats.count = static_cast<uint64_t>(count);
  stats.update_sq = reduce_fixed<double>(count, square, plus);
  stats.weight_sq = reduce_fixed<double>(
      count, [&](int64_t i) { return old(i) * old(i); }, plus);
  stats.stagnant_sq = reduce_fixed<double>(
      count, [&](int64_t i) { return is_stagnant(i) ? square(i) : 0; }, plus);
  return stats;
}

}  // namespace lockstep
