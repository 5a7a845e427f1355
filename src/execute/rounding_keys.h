// Keys of stochastic rounding: the run's seed, the policy's stream, the step, and the site of the
// value. Values that are kept between steps and have no site take keys after the last site.
#pragma once

#include <cstdint>

#include "src/graph/site.h"

namespace lockstep {

// The common part of the keys of one forward and backward pass.
struct ExecutionKey {
  uint64_t seed = 0;
  uint32_t stream = 0;  // the policy's
  uint64_t step = 0;
};

enum class SitelessKind : uint8_t {
  kInput,
  kParameter,  // one without a gradient
  kBuffer,
};

// A key instead of a site id: `index` counts the values of one kind.
inline uint32_t siteless_key(const SiteTable& sites, SitelessKind kind, int64_t index) {
  constexpr uint32_t kPerKind = 1 << 16;  // a graph has fewer of each kind
  return static_cast<uint32_t>(sites.sites.size()) + static_cast<uint32_t>(kind) * kPerKind +
         static_cast<uint32_t>(index);
}

}  // namespace lockstep
