// Cuts one pass over an array into pieces and joins the statistics of the pieces.
// Shared by the scalar and the vector kernels. Chunks of whole 4096-element blocks run on any
// thread. Counts are integers and join in any order; sums are kept per block and join in the fixed
// tree of emulation/kernels/reduction.h. What one element contributes: element_stats.h.
#pragma once

#include <algorithm>
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

// The chunks of [0, count) and what has been found in each: integer statistics in a Part, sums by
// block. Chunks may run in any order and on any thread.
template <int kSums, typename Part>
class ChunkResults {
 public:
  explicit ChunkResults(int64_t count)
      : count_(count),
        size_(chunk_blocks(count) * kReductionBlock),
        parts_(static_cast<size_t>((count + size_ - 1) / size_)),
        sums_(static_cast<size_t>((count + kReductionBlock - 1) / kReductionBlock)) {}
  int64_t chunks() const { return static_cast<int64_t>(parts_.size()); }
  int64_t begin(int64_t chunk) const { return chunk * size_; }
  int64_t end(int64_t chunk) const { return std::min(count_, (chunk + 1) * size_); }
  Part& part(int64_t chunk) { return parts_[static_cast<size_t>(chunk)]; }
  // The sums of the chunk's first block; those of its other blocks follow.
  BlockSums<kSums>* sums(int64_t chunk) { return sums_.data() + begin(chunk) / kReductionBlock; }
  // Merges the parts into `*whole`, which must be empty; returns the totals of the sums.
  BlockSums<kSums> join(Part* whole) const {
    for (const Part& part : parts_) whole->merge(part);
    return join_sums(sums_);
  }

 private:
  int64_t count_, size_;
  std::vector<Part> parts_;
  std::vector<BlockSums<kSums>> sums_;
};

// Calls chunk(begin, end, part, sums) for every chunk of [0, count), see ChunkResults.
template <int kSums, typename Part, typename Chunk>
BlockSums<kSums> for_each_chunk(int64_t count, Part* whole, Chunk chunk) {
  ChunkResults<kSums, Part> results(count);
  parallel_for(results.chunks(), [&](int64_t i) {
    chunk(results.begin(i), results.end(i), results.part(i), results.sums(i));
  });
  return results.join(whole);
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
