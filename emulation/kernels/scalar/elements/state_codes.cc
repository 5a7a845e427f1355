// See state_codes.h.
#include "emulation/kernels/scalar/elements/state_codes.h"

#include <vector>

#include "emulation/kernels/scalar/elements/optimizer_loop.h"
#include "src/core/parallel.h"

namespace lockstep {

void round_state(std::span<float> values, const StateCodes& codes, bool is_signed,
                 TensorStats* stats) {
  const std::vector<float> before(values.begin(), stats == nullptr ? values.begin() : values.end());
  const auto size = static_cast<size_t>(codes.block_size);
  parallel_for(static_cast<int64_t>(values.size() / size), [&](int64_t block) {
    round_to_codes(values.subspan(static_cast<size_t>(block) * size, size), codes, is_signed);
  });
  if (stats == nullptr) return;
  optimizer_loop::Measurement<true> measured(stats, find_format("fp32"), static_cast<int64_t>(values.size()));
  for (size_t i = 0; i < values.size(); ++i) {
    measured.add(static_cast<int64_t>(i), before[i], values[i]);
  }
  measured.finish();
}

}  // namespace lockstep
