// The inputs and outputs of matrix instructions.
// Instructions with their start, tiles whose places all hold one recorded dot product, and the text
// of a mismatch.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "emulation/accumulator/dot_vectors.h"
#include "emulation/verify/nvidia/mma_device.h"
#include "emulation/verify/nvidia/nvidia_model.h"

namespace lockstep::mma {

// One instruction, started from C or from zero.
struct Variant {
  Instruction instruction;
  bool from_zero;
  std::string name() const { return instruction.name() + (from_zero ? " from zero" : ""); }
};

// The variants of the instructions that a chip of this capability runs.
std::vector<Variant> variants_of(const std::vector<Instruction>& instructions, int capability);
std::vector<Variant> all_variants(int capability);

// Tiles that hold at least this many outputs.
uint64_t tiles_for(uint64_t outputs, const Shape& shape);

// The addend, and the result, of one output.
uint32_t start_of(const TileBatch& tiles, int64_t tile, int row, int column, bool from_zero);
uint32_t result_of(const std::vector<uint32_t>& d, const Shape& shape, int64_t tile, int row,
                   int column);

std::string mismatch_text(const Variant& variant, const NvidiaModel& model, const TileBatch& tiles,
                          const std::vector<uint32_t>& d, int64_t tile, int row, int column);

// A vector's dot product in every place of a tile: all rows of A are equal, and all columns of B.
TileBatch tiles_of_vectors(const std::vector<const DotVector*>& vectors, const Shape& shape);
// Vectors of the model's shape and of accumulators that match it. RTX Blackwell uses Blackwell's.
bool fits(const DotVector& vector, const Instruction& instruction, const NvidiaModel& model);

// The vectors that an instruction has computed.
struct VectorRun {
  std::vector<const DotVector*> vectors;
  TileBatch tiles;
  std::vector<uint32_t> d;
};
template <typename Wanted>
VectorRun run_vectors(Device& device, const Instruction& instruction, const NvidiaModel& model,
                      const std::vector<DotVector>& vectors, const Wanted& wanted) {
  std::vector<const DotVector*> chosen;
  for (const DotVector& vector : vectors) {
    if (wanted(vector) && fits(vector, instruction, model)) chosen.push_back(&vector);
  }
  VectorRun run{chosen, tiles_of_vectors(chosen, instruction.shape), {}};
  if (!chosen.empty()) run.d = device.multiply(instruction, /*from_zero=*/false, run.tiles);
  return run;
}

// The first place whose result differs from the model's, or -1.
int wrong_place(const NvidiaModel& model, const VectorRun& run, int64_t v);

std::string vector_text(const Variant& variant, const NvidiaModel& model, const VectorRun& run,
                        int64_t v, int place);

}  // namespace lockstep::mma
