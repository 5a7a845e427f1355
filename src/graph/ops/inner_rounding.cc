// Masks drawn inside ops. Element i has the same bits for every thread count and lane.
#include "src/graph/ops/inner_rounding.h"

#include <cmath>

#include "emulation/scalar/chunks.h"

namespace lockstep {

// Philox counter: (element / 4, step, purpose and part, node), keyed by the seed.
void draw_inner_mask(const RandomKey& key, double p, uint32_t part, int32_t* mask, int64_t count) {
  constexpr double kTwoTo32 = 4294967296.0;
  constexpr int kPartShift = 8;  // purposes are below 2^8
  constexpr int64_t kWords = 4;
  const auto dropped = static_cast<uint64_t>(std::nearbyint(p * kTwoTo32));  // of 2^32 words
  const std::array<uint32_t, 2> seed = {static_cast<uint32_t>(key.seed),
                                        static_cast<uint32_t>(key.seed >> 32)};
  const uint32_t purpose = static_cast<uint32_t>(RandomPurpose::kInnerDropout) | part << kPartShift;
  parallel_chunks((count + kWords - 1) / kWords, kElementGrain, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      const auto words = philox4x32(
          seed, {static_cast<uint32_t>(block), static_cast<uint32_t>(key.step), purpose, key.node});
      for (int64_t i = block * kWords; i < std::min(count, (block + 1) * kWords); ++i) {
        mask[i] = words[static_cast<size_t>(i % kWords)] >= dropped ? 1 : 0;
      }
    }
  });
}

}  // namespace lockstep
