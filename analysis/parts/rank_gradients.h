// The gradients of a part on all ranks, added up, against those that the run reduced.
// DDP and FSDP give each rank the mean of all ranks' gradients, or its block of that mean. The
// ranks' own gradients are in their parts, so the mean can be formed again.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "src/capture/capture.h"

namespace lockstep {

struct RankGradients {
  int64_t ranks = 0;    // whose parts were added
  int64_t tensors = 0;  // that the run reduced; 0: there was nothing to compare
  double off = 0;       // the largest distance, relative to the norm of the run's; 0: the same bits
  std::string where;    // the weight and rank of that
  bool is_sum = false;  // the run's are sums over the ranks, not means
};

// The parts of one module and step. Ranks with other columns of a split layer are apart.
// Throws: InputError where the ranks' parts have different weights.
RankGradients compare_rank_gradients(std::span<const CapturedPart> parts);

// Up to this distance the order and the format of the reduction explain it: a sum in BF16.
inline constexpr double kReductionRounding = 0x1p-7;

}  // namespace lockstep
