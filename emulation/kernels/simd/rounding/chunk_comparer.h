// Compares an array with the reference's chunk by chunk: the compare kernel for callers that have
// just written a chunk (emulation/kernels/block_pass.h), so that it need not be fetched again.
#pragma once

#include <cstdint>
#include <memory>

#include "emulation/kernels/args/quantize_spec.h"

namespace lockstep {

class ChunkComparer {
 public:
  virtual ~ChunkComparer() = default;
  // Chunks may come in any order and on any thread, each once.
  virtual void compare(int64_t chunk) = 0;
  virtual ErrorStats error() const = 0;  // after all chunks
};

// Null if only the scalar kernel compares this format. The arrays must outlive the result.
// Requires: cpu_has_avx2() or cpu_has_avx512() (emulation/kernels/simd/targets.h).
std::unique_ptr<ChunkComparer> avx2_chunk_comparer(const float* lane, int64_t count,
                                                   const ReferenceComparison& with);
std::unique_ptr<ChunkComparer> avx512_chunk_comparer(const float* lane, int64_t count,
                                                     const ReferenceComparison& with);

}  // namespace lockstep
