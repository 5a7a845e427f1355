// The loop of an optimizer over blocks of a parameter, and the sums of its effect.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "emulation/kernels/reduction.h"
#include "emulation/stats/update_stats.h"
#include "src/core/parallel.h"

namespace lockstep {

// What one block of at most 4096 elements adds to UpdateStats. The sums are in the fixed shape of
// reduction.h.
struct BlockUpdate {
  uint64_t stagnant = 0;
  double update_sq = 0, weight_sq = 0, stagnant_sq = 0;
};

// block(begin, n) -> BlockUpdate, on any thread. `stats` may be null.
template <typename Block>
void update_blocks(int64_t count, UpdateStats* stats, Block block) {
  const int64_t blocks = (count + kReductionBlock - 1) / kReductionBlock;
  std::vector<BlockUpdate> parts(static_cast<size_t>(blocks));
  parallel_for(blocks, [&](int64_t b) {
    const int64_t begin = b * kReductionBlock;
    parts[static_cast<size_t>(b)] = block(begin, std::min(kReductionBlock, count - begin));
  });
  if (stats == nullptr) return;
  const auto sum = [&](double BlockUpdate::*member) {
    std::vector<double> sums;
    for (const BlockUpdate& part : parts) sums.push_back(part.*member);
    return join_blocks(std::move(sums), [](double x, double y) { return x + y; });
  };
  *stats = UpdateStats{};
  for (const BlockUpdate& part : parts) stats->stagnant += part.stagnant;
  stats->count = static_cast<uint64_t>(count);
  stats->update_sq = sum(&BlockUpdate::update_sq);
  stats->weight_sq = sum(&BlockUpdate::weight_sq);
  stats->stagnant_sq = sum(&BlockUpdate::stagnant_sq);
}

}  // namespace lockstep
