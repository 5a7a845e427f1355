// Does a lane on a GPU compute what its software lane says the GPU does?
// Compares a lane whose products a device formed with the lane of the same policy that uses the
// models of that chip, site by site, and says where they part. Both must be in one run.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "src/record/run/run_file.h"

namespace lockstep {

// A site where the two differ although all that enters it is equal: their sums differ here.
struct Parting {
  int32_t site = -1;
  std::vector<DeviceProduct> products;  // of the site's node; none: no product on the device
};

// A site whose bits differ in some step. Its distance is |device - model| / |reference|, as norms
// over all such steps. It was not recorded; both lanes' errors against the reference bound it. NaN:
// values are not finite, or the reference is zero.
struct SiteGap {
  int32_t site = -1;
  int64_t tensors = 0, same = 0;  // one per measured step
  double least = 0, most = 0;
};

struct HardwarePair {
  int model_lane = -1;
  int64_t tensors = 0, same = 0;    // of all sites and measured steps
  int64_t first_step = -1;          // in which bits differ; -1: none
  std::vector<Parting> partings;    // in that step, in its order
  std::vector<SiteGap> gaps;        // in the order of a step
  double loss_gap = 0;              // largest |device - model| / |model| of a step's losses
  bool has_narrow_results = false;  // by [cuda] results leave the library in the factors' format
};

// Nothing: the lane has no device, or the run has no software lane of its policy and chip.
std::optional<HardwarePair> compare_with_model(const RunFile& run, int lane);

}  // namespace lockstep
