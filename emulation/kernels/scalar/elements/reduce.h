// Sums of many terms with a declared accumulator, in the one shape of
// emulation/kernels/reduction.h. Every kernel that sums (channel_sum, batch_norm, softmax, losses)
// is written over a BlockSum, the sum of one block of at most 4096 terms, so that an instruction
// set supplies only BlockSum.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "emulation/accumulator/accumulator.h"
#include "emulation/kernels/reduction.h"

namespace lockstep {

// Sum of `count` <= kReductionBlock terms: 16 virtual lanes, joined pairwise. The result is a value
// of the accumulator's format, canonical NaN included, held in double.
template <typename T>
using BlockSum = double (*)(const T* terms, int64_t count, const Accumulator& accumulator);

template <typename T>
double scalar_block_sum(const T* terms, int64_t count, const Accumulator& accumulator);

// Whether the accumulator's addition is T's own.
template <typename T>
bool adds_natively(const Accumulator& accumulator) {
  return std::is_same_v<T, float> ? accumulator.format->is_fp32() : accumulator.format->is_fp64();
}

// Neighbouring columns that are summed at the same time: their 16 virtual lanes, of two sums, stay
// in a first-level cache.
inline constexpr int64_t kColumnTile = 64;

// Joins block sums in the fixed tree with the accumulator's addition.
double join_block_sums(std::vector<double> sums, const Accumulator& accumulator);

// Sum of a contiguous array.
template <typename T>
double sum_array(const T* terms, int64_t count, const Accumulator& accumulator,
                 BlockSum<T> block_sum) {
  if (count <= kReductionBlock) return block_sum(terms, count, accumulator);
  std::vector<double> sums;
  for (int64_t begin = 0; begin < count; begin += kReductionBlock) {
    sums.push_back(block_sum(terms + begin, std::min(kReductionBlock, count - begin), accumulator));
  }
  return join_block_sums(std::move(sums), accumulator);
}

// Sum of terms computed block by block: fill(begin, n, buffer) writes terms [begin, begin + n).
template <typename T, typename Fill>
double sum_terms(int64_t count, const Accumulator& accumulator, BlockSum<T> block_sum, Fill fill) {
  std::vector<T> buffer(static_cast<size_t>(std::min(count, kReductionBlock)));
  std::vector<double> sums;
  for (int64_t begin = 0; begin < count; begin += kReductionBlock) {
    const int64_t n = std::min(kReductionBlock, count - begin);
    fill(begin, n, buffer.data());
    sums.push_back(block_sum(buffer.data(), n, accumulator));
  }
  return join_block_sums(std::move(sums), accumulator);
}

// Walks elements [begin, begin + n) of channel c of an (O,C,I) array in (o, i) order as contiguous
// runs: run(offset into the array, length).
template <typename Run>
void for_channel_runs(int64_t channels, int64_t inner, int64_t channel, int64_t begin, int64_t n,
                      Run run) {
  while (n > 0) {
    const int64_t o = begin / inner, i = begin % inner;
    const int64_t length = std::min(n, inner - i);
    run((o * channels + channel) * inner + i, length);
    begin += length;
    n -= length;
  }
}

// Kernels<T>::channel_sum over a given block sum.
template <typename T>
void channel_sum_with(BlockSum<T> block_sum, const T* x, T* y, int64_t outer, int64_t channels,
                      int64_t inner, const Accumulator& accumulator);
template <typename T>
void scalar_channel_sum(const T* x, T* y, int64_t outer, int64_t channels, int64_t inner,
                        const Accumulator& accumulator);

}  // namespace lockstep
