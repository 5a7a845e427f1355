// See round_state.h.
#include "emulation/kernels/scalar/elements/round_state.h"

#include <algorithm>
#include <span>
#include <vector>

#include "emulation/kernels/scalar/elements/optimizer_loop.h"
#include "src/core/parallel.h"

namespace lockstep {

void round_state(float* values, int64_t count, const StateCodes& codes, bool is_signed,
                 TensorStats* stats) {
  const std::vector<float> before(values, stats == nullptr ? values : values + count);
  const int64_t size = codes.block_size;
  parallel_for((count + size - 1) / size, [&](int64_t block) {
    const int64_t begin = block * size, length = std::min(size, count - begin);
    round_to_codes({values + begin, static_cast<size_t>(length)}, codes, is_signed);
  });
  if (stats == nullptr) return;
  optimizer_loop::Measurement<true> measured(stats, find_format("fp32"), count);
  for (int64_t i = 0; i < count; ++i) measured.add(i, before[static_cast<size_t>(i)], values[i]);
  measured.finish();
}

}  // namespace lockstep
