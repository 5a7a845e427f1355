// Devices that run matrix instructions.
// A device takes tiles and returns D, or makes, runs and checks a stream of tiles itself. The GPU
// is one device (mma_kernels.cu, in builds with CUDA); tests use software instead.
// Knows nothing of units, vectors or tables.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "emulation/verify/nvidia/mma_cases.h"
#include "emulation/verify/nvidia/mma_instruction.h"

namespace lockstep::mma {

// Tiles of one shape, one after the other in each array.
struct TileBatch {
  Shape shape;
  int64_t count = 0;
  std::vector<uint32_t> a, b, c;

  TileBatch(const Shape& shape_of, int64_t tile_count);
  Tile tile(int64_t i) const;
};

// Tiles from `first` on of a stream. kCancelAddend cancels the sum of `rule`.
TileBatch make_tiles(const CaseStream& stream, const Rule& rule, const Shape& shape, uint64_t first,
                     int64_t count);

// `from_zero`: C is ignored (wgmma's scale-d = 0).
struct Comparison {
  Instruction instruction;
  bool from_zero = false;
  CaseStream stream;
  uint64_t first_tile = 0;
  uint64_t tile_count = 0;
  std::vector<Rule> rules;  // at most kMostRules; the first makes the cases
};
inline constexpr int kMostRules = 8;

struct Verdict {
  std::vector<uint64_t> mismatches;  // of each rule
  uint64_t first_mismatch = kNone;   // of the first rule: tile * outputs + row * n + column
  static constexpr uint64_t kNone = UINT64_MAX;
};

class Device {
 public:
  virtual ~Device() = default;
  virtual std::string description() const = 0;  // "NVIDIA H200, compute capability 9.0, ..."
  virtual int capability() const = 0;           // 10 * major + minor
  // D of every tile. Throws: std::runtime_error if the device fails.
  virtual std::vector<uint32_t> multiply(const Instruction& instruction, bool from_zero,
                                         const TileBatch& tiles) = 0;
  virtual Verdict compare(const Comparison& comparison) = 0;
};

// The first GPU of the machine, the same object at every call; or nullptr and the reason: no nvcc
// at build time, no driver, no GPU, or no code for this GPU.
Device* cuda_device(std::string* why_not);

}  // namespace lockstep::mma
