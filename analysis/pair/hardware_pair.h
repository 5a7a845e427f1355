// Compares a lane on a GPU with the software lane that models the GPU.
// Takes a lane whose products a device formed and the lane of the same policy that uses the models
// of that chip, site by site, and says where they part. Both must be in one run.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "src/record/run/run_reader.h"
#include "src/train/observer.h"

namespace lockstep {

// A site whose bits differ although all that enters it is equal.
struct FirstDifference {
  int32_t site = -1;
  std::vector<DeviceProduct> products;  // of the site's op; none: the device formed no sums there
  bool is_rounded = false;  // by [cuda], the results left the library in the factors' format

  int64_t most_parts() const;  // of one of the products
};

// A site whose bits differ in some step. Its distance is |device - model| / |reference|, as norms
// over all such steps. It was not recorded; both lanes' errors against the reference bound it. NaN:
// values are not finite, or the reference is zero.
struct SiteGap {
  int32_t site = -1;
  int64_t tensors = 0, same = 0;  // one per measured step
  double least = 0, most = 0;
};

// Products of which all that enters is equal in both lanes, and those whose results are, too.
struct EqualProducts {
  int64_t products = 0, same = 0;
};

struct HardwarePair {
  int model_lane = -1;
  int64_t tensors = 0, same = 0;       // of all sites and measured steps
  EqualProducts one_chain, in_parts;   // in_parts: the library may have split the sums
  int64_t first_step = -1;             // in which bits differ; -1: none
  bool follows_unmeasured = false;     // that step follows one without statistics
  std::vector<FirstDifference> first;  // in that step, in its order, unless follows_unmeasured
  std::vector<SiteGap> gaps;           // in the order of a step
  // The largest |device - model| / |model| of a step's losses, and the first step in which one of
  // them alone is not finite; -1: none.
  double loss_gap = 0;
  int64_t one_broke_at = -1;
};

// Compares a lane with its model, of a run that is played back.
class HardwareTally : public Observer {
 public:
  // `run` must outlive the object.
  HardwareTally(const RunFile& run, int lane);
  ~HardwareTally() override;
  void on_step(const StepRecord& record) override;
  // Nothing: the lane has no device, or the run has no software lane of its policy and chip.
  std::optional<HardwarePair> pair() const;

 private:
  class Comparison;
  std::unique_ptr<Comparison> comparison_;  // null: no pair
};

}  // namespace lockstep
