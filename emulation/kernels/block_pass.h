// Cuts one pass over an array into pieces and joins the statistics of the pieces.
// Shared by the scalar and the vector kernels. Chunks of whole 4096-element blocks run on any
// thread. Counts are integers and join in any order; sums are kept per block and join in the fixed
// tree of emulation/kernels/reduction.h. Also defines what one element contributes to every
// statistic.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "emulation/format/format.h"
#include "emulation/kernels/args/quantize_spec.h"
#include "emulation/kernels/reduction.h"
#include "emulation/stats/hash.h"
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

// The limits of a format that the statistics need.
struct StatsLimits {
  double max_finite, min_normal;
  explicit StatsLimits(const Format& format)
      : max_finite(format.max_finite), min_normal(format.min_normal()) {}
};

// The FP32 exponent field of x; a double takes the bin of its exponent clamped to 0..255.
inline int exponent_bin(float x) {
  return std::bit_cast<uint32_t>(x) >> 23 & 0xff;
}
inline int exponent_bin(double x) {
  constexpr int kBiasDifference = 1023 - 127;
  const int field = static_cast<int>(std::bit_cast<uint64_t>(x) >> 52 & 0x7ff);
  const int bin = field - kBiasDifference;
  return bin < 0 ? 0 : bin > 255 ? 255 : bin;
}

// How the sums of a block of floats are formed (sums of doubles are in double throughout). In most
// blocks, four elements of a virtual lane, from four rows of 16 (a group), are added in float
// first, then to the double:
//   t = 0;  t = fma(s x, s x, t) four times, in float;  lane += t / s^2;  likewise s (y - x)
// The scale s is a power of two, chosen so that no step overflows or underflows: all nonzero
// magnitudes are within 100 binades, the least is 2^-126 or more, and y is at least 2^-23 of the
// least. So the sums do not depend on s. Elements after the last whole group are added in double,
// as are all elements of other blocks.
// Error: of a group at most gamma_4 of float, that is 2.4e-7 of the sum.
inline constexpr int64_t kGroupRows = 4;
inline constexpr int64_t kGroup = kGroupRows * kReductionLanes;
struct GroupRule {
  bool grouped;
  float scale = 1;
  double unscale = 1;  // 1 / scale^2
};
// `least` and `largest`: bits of the block's least nonzero and its largest magnitude; `largest` is
// 0 for a block of zeros.
inline GroupRule find_group_rule(uint32_t least, uint32_t largest, const StatsLimits& limits) {
  constexpr int kFraction = 23, kBias = 127, kMostBinades = 100, kMaxField = 254;
  constexpr int kTarget = 60;  // the largest is scaled to about 2^60: four squares stay finite
  constexpr uint32_t kInfinity = 0x7f800000;
  if (largest == 0) return {true};
  const bool finite = largest < kInfinity && std::bit_cast<float>(largest) <= limits.max_finite;
  // Roundings up reach the format's least numbers from below.
  const auto from_below = std::bit_cast<uint32_t>(static_cast<float>(limits.min_normal));
  const int top = static_cast<int>(std::max(largest, from_below) >> kFraction);
  const int low = static_cast<int>(least >> kFraction);
  if (!finite || low == 0 || top - low > kMostBinades) return {false};
  const int field = std::min(2 * kBias + kTarget - top, kMaxField);
  const float scale = std::bit_cast<float>(static_cast<uint32_t>(field) << kFraction);
  return {true, scale, 1 / (static_cast<double>(scale) * scale)};
}

// Adds one element to the statistics that are not sums.
template <typename Before, typename T>
void count_element(Before before, T after, uint64_t index, const StatsLimits& limits,
                   TensorStats& stats) {
  const double x = before, y = after;
  const double magnitude = std::abs(x), result = std::abs(y);
  ++stats.count;
  ++stats.exponent_histogram[static_cast<size_t>(exponent_bin(before))];
  stats.bits_hash += hash_element(after, index);
  if (std::isnan(x)) {
    ++stats.nan;
    return;
  }
  const bool finite = std::isfinite(x), stays_finite = std::isfinite(y);
  stats.source_zero += x == 0;
  stats.to_zero += x != 0 && y == 0;
  stats.to_subnormal += y != 0 && result < limits.min_normal;
  stats.to_infinity += finite && !stays_finite;
  stats.saturated += magnitude > limits.max_finite && result == limits.max_finite;
  stats.inexact += !(y == x);
  stats.abs_max = magnitude > stats.abs_max ? magnitude : stats.abs_max;
  if (finite && x != 0 && magnitude < stats.abs_min_nonzero) stats.abs_min_nonzero = magnitude;
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

// One compared pair. `error` and the rest are its virtual lanes. Requires: both finite.
struct ComparedTerms {
  double err_sq, dot_ref, ref_sq, ulps;
};
inline ComparedTerms compare_element(double lane, double reference, double scale,
                                     const Format& format) {
  const double unscaled = lane / scale;
  const double e = unscaled - reference;
  const double ulps = std::abs(e * scale) / ulp(reference * scale, format);
  return {e * e, unscaled * reference, reference * reference, ulps};
}
enum CompareSum { kErrors, kDots, kReferences, kCompareSums };

}  // namespace lockstep
