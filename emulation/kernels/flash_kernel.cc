// The rows. If a new row needs something that no row has yet, add a field whose zero means the old
// behaviour.
#include "emulation/kernels/flash_kernel.h"

#include <string>
#include <vector>

#include "src/core/error.h"
#include "src/core/find_row.h"
#include "src/core/text.h"

namespace lockstep {
namespace {

constexpr FlashKernel kKernels[] = {
    {.name = "whole_rows",
     .help = "probabilities are rounded after normalisation; no blocks",
     .source = "the formula of the op"},
    {.name = "torch_cpu",
     .help = "exp(s - max) is rounded before normalisation, in blocks of 512 keys; gradients of k "
             "and v are rounded after every 32 queries (64 from 192, 256 from 768), those of q "
             "after every 512 keys; full vectors of 16 keys take an exp with 2^-13 of error",
     .source = "aten/src/ATen/native/cpu/FlashAttentionKernel.cpp, compared with PyTorch 2.13 on a "
               "CPU with AVX-512 (tests/integration/compare/test_torch_attention.py)",
     .key_block = 512,
     .query_blocks = {{{0, 32}, {192, 64}, {768, 256}}},
     .fast_exp_keys = 16},
};

}  // namespace

int64_t FlashKernel::query_block(int64_t queries) const {
  int64_t rows = 0;
  for (const QueryBlock& block : query_blocks) {
    if (queries >= block.from) rows = block.rows;
  }
  return rows;
}

std::span<const FlashKernel> flash_kernels() {
  return kKernels;
}

const FlashKernel& find_flash_kernel(std::string_view name) {
  return find_row("attention kernel", name, kKernels);
}

}  // namespace lockstep
