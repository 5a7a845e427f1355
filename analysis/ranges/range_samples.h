// The tensors of a run that a policy would hold in a low-precision format, and their magnitudes.
#pragma once

#include <cstdint>
#include <vector>

#include "analysis/ranges/scale_interval.h"
#include "src/policy/policy.h"
#include "src/record/run/run_reader.h"
#include "src/train/observer.h"

namespace lockstep {

// Roles that a policy may hold in a low-precision format; accumulators, masters, optimizer state,
// buffers and the loss stay in FP32.
bool may_be_low(Role role);

// The sites that an op computed in `base`'s autocast format would touch: inputs, weights,
// activations and gradients of ops whose class is not kFp32.
std::vector<int32_t> sites_in_range(const RunFile& run, const Policy& base);

// Counts the zeros that came to each site of the reference, over the measured steps.
class ZeroTally : public Observer {
 public:
  explicit ZeroTally(size_t sites) : zeros_(sites) {}
  void on_step(const StepRecord& record) override;
  const std::vector<uint64_t>& zeros() const { return zeros_; }  // by site id

 private:
  std::vector<uint64_t> zeros_;
};

// The reference lane's magnitudes at these sites. `zeros`: of a ZeroTally; without them the
// reference is played.
std::vector<RangeSample> range_samples(const RunFile& run, const Policy& base,
                                       const std::vector<uint64_t>& zeros);
std::vector<RangeSample> range_samples(const RunFile& run, const Policy& base);

}  // namespace lockstep
