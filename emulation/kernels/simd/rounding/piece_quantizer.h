// Rounds and measures an array piece by piece.
// The quantize kernel for callers that decide when a piece is read, such as the packing of a matrix
// product. Pieces may come in any order and on any thread. The statistics are those of one call of
// quantize if every 4096-element block is measured exactly once.
#pragma once

#include <cstdint>
#include <memory>

#include "emulation/kernels/args/quantize_spec.h"
#include "emulation/kernels/block_pass.h"

namespace lockstep {

// The counts of one thread, until they are added to the array's statistics.
class PieceTally {
 public:
  virtual ~PieceTally() = default;
  virtual void add_to(TensorStats& stats) const = 0;
};

class PieceQuantizer {
 public:
  virtual ~PieceQuantizer() = default;
  virtual std::unique_ptr<PieceTally> make_tally() const = 0;
  // Elements [begin, end) rounded, from `out` on. Requires: begin is a multiple of 64
  // (emulation/format/stochastic.h).
  virtual void round(int64_t begin, int64_t end, float* out) const = 0;
  // The same, measured; sums[0] is the first block's. `out` may be null: nothing is stored.
  // Requires: `tally` is one of make_tally(); begin is the start of a block, end the end of one or
  // of the array.
  virtual void measure(int64_t begin, int64_t end, float* out, PieceTally& tally,
                       BlockSums<kQuantizeSums>* sums) const = 0;
};

// Null if only the scalar kernel rounds this way. `before` and the objects that `spec` points to
// must outlive the result. Requires: cpu_has_avx2() or cpu_has_avx512()
// (emulation/kernels/simd/targets.h).
std::unique_ptr<PieceQuantizer> avx2_piece_quantizer(const float* before, const QuantizeSpec& spec);
std::unique_ptr<PieceQuantizer> avx512_piece_quantizer(const float* before,
                                                       const QuantizeSpec& spec);

}  // namespace lockstep
