// Cuts one pass over an array into pieces and joins the statistics of the pieces.
// Shared by the scalar and the vector kernels. Chunks of whole 4096-element blocks run on any
// thread. Counts are integers and join in any order; sums are kept per block and join in the fixed
// tree of emulation/kernels/reduction.h. What one element contributes: element_stats.h.
#pragma once

#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "emulation/format/format.h"
#include "emulation/kernels/args/quantize_spec.h"
#include "emulation/kernels/element_stats.h"
#include "emulation/kernels/reduction.h"
#include "emulation/stats/tensor_stats.h"
#include "src/core/parallel.h"

namespace lockstep {

// One task of the pool: 16 blocks, 256 KiB of floats, tens of microseconds of work.
inline constexpr int64_t kChunkBlocks = 16;
inline constexpr int64_t kChunk = kChunkBlocks * kReductionBlock;
// Arrays of a few such chunks are cut finer, so that all threads get a part; the smallest run on
// the calling thread.
inline int64_t chunk_blocks(int64_t count) {
  constexpr int64_t kFewest = 8, kFine = 4;
  return count >= kFewest * kChunk ? kChunkBlocks : kFine;
}

// The 16 virtual lanes of one block's sum.
struct VirtualLanes {
  double lane[kReductionLanes] = {};
  double join() const {
    double sums[kReductionLanes];
    for (int64_t l = 0; l < kReductionLanes; ++l) sums[l] = lane[l];
    for (int64_t half = kReductionLanes / 2; half > 0; half /= 2) {
      for (int64_t l = 0; l < half; ++l) sums[l] += sums[l + half];
    }
    return sums[0];
  }
};

// The sums of one block. Each kernel defines what the fields mean.
template <int kCount>
struct BlockSums {
  double sum[kCount] = {};
};

// The totals of the sums of all blocks of an array, in the array's order.
template <int kSums>
BlockSums<kSums> join_sums(const std::vector<BlockSums<kSums>>& blocks) {
  BlockSums<kSums> total;
  for (int s = 0; s < kSums; ++s) {
    std::vector<double> column(blocks.size());
    for (size_t b = 0; b < blocks.size(); ++b) column[b] = blocks[b].sum[s];
    total.sum[s] = join_blocks(std::move(column), [](double x, double y) { return x + y; });
  }
  return total;
}

// Calls chunk(begin, end, part, sums) for every chunk of [0, count), `part` a fresh Part for
// integer statistics, `sums` pointing at the BlockSums of the chunk's first block. Merges the parts
// into
// `*whole` and returns the totals of the sums.
template <int kSums, typename Part, typename Chunk>
BlockSums<kSums> for_each_chunk(int64_t count, Part* whole, Chunk chunk) {
  const int64_t blocks = (count + kReductionBlock - 1) / kReductionBlock;
  const int64_t chunk_size = chunk_blocks(count) * kReductionBlock;
  const int64_t chunks = (count + chunk_size - 1) / chunk_size;
  std::vector<BlockSums<kSums>> sums(static_cast<size_t>(blocks));
  std::vector<Part> parts(static_cast<size_t>(chunks > 1 ? chunks : 0));
  parallel_for(chunks, [&](int64_t i) {
    const int64_t begin = i * chunk_size;
    const int64_t end = begin + chunk_size < count ? begin + chunk_size : count;
    Part* part = chunks > 1 ? &parts[static_cast<size_t>(i)] : whole;
    chunk(begin, end, *part, sums.data() + begin / kReductionBlock);
  });
  for (const Part& part : parts) whole->merge(part);
  return join_sums(sums);
}

// Adds one element to all statistics. `square` and `error` are its virtual lanes of the two sums.
// `before` may be a double where `after` is a float: then its value is more exact than its
// container.
template <typename Before, typename T>
void measure_element(Before before, T after, uint64_t index, const StatsLimits& limits,
                     TensorStats& stats, double& square, double& error) {
  count_element(before, after, index, limits, stats);
  const double x = before, y = after;
  if (!std::isfinite(x)) return;
  square += x * x;
  if (std::isfinite(y)) error += (y - x) * (y - x);
}

// Order of the sums of a quantize pass.
enum QuantizeSum { kSquares, kRoundErrors, kQuantizeSums };

}  // namespace lockstep
