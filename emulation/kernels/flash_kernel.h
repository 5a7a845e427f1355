// THE table of fused attention kernels: the pieces in which they compute, and what they round. All
// of them keep scores and softmax in FP32. They round what they multiply by v; they also round the
// gradients of the scores, as factors of the next product. emulation/kernels/args/attention_args.h
// has the formulas.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

namespace lockstep {

struct FlashKernel {
  std::string_view name, help, source;
  // Keys that are processed at a time, with the running maximum m of the row:
  //   e = exp(s - m), rounded as the factor of v;  l = sum e, not rounded;  y = (sum e v) / l
  // and the gradient of the scores uses sum(dy y), with the rounded y, as sum(dp p).
  // 0: the whole row at once; then the probabilities e / l are rounded.
  int64_t key_block = 0;
  // Rows of q at a time in the backward pass. The total number of rows selects the last entry whose
  // `from` is not above it. dk and dv are sums over these blocks (head by head where heads share k
  // and v), dq is a sum over the blocks of keys; each sum is rounded after each block.
  struct QueryBlock {
    int64_t from, rows;
  };
  std::array<QueryBlock, 3> query_blocks = {};
  // Keys per vector: where e is rounded to a narrow format, full vectors of a block use fast_exp
  // and the rest of the block uses the exact function. 0: exact everywhere.
  int64_t fast_exp_keys = 0;

  bool in_blocks() const { return key_block > 0; }
  int64_t query_block(int64_t queries) const;  // Requires: in_blocks()
};

std::span<const FlashKernel> flash_kernels();                 // the default first
const FlashKernel& find_flash_kernel(std::string_view name);  // Throws: InputError, did-you-mean

}  // namespace lockstep
