// The exact result of rounding each of the 2^32 floats.
// The results ascend with the magnitudes of the inputs. So the rounding of all floats to a format
// is a short list "from this float on, this value" for each mode and sign. The values and the
// places where they change come from the oracle alone.
#pragma once

#include <cstdint>
#include <vector>

#include "emulation/format/format.h"
#include "emulation/format/rounding.h"

namespace lockstep {

// From magnitude bits `from` on, the result has the bits `value`, sign included.
struct Boundary {
  uint32_t from, value;
};

// The modes that give one result for one input.
const std::vector<Rounding>& deterministic_roundings();

// The boundaries of one format, for every deterministic mode and both signs.
class Fp32Boundaries {
 public:
  // Requires: a format of at most 20 bits that FP32 contains.
  explicit Fp32Boundaries(const Format& format);

  const std::vector<Boundary>& of(Rounding rounding, bool negative) const;
  // The results of `count` inputs with consecutive bits, from `first` on. Requires: all of one
  // sign.
  void fill(uint32_t first, int64_t count, Rounding rounding, uint32_t* results) const;

 private:
  std::vector<std::vector<Boundary>> lists_;  // by mode, then sign
};

}  // namespace lockstep
