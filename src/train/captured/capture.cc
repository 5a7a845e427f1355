#include "src/train/captured/capture.h"

namespace lockstep {

Batch unpacked_batch(const CapturedMicroBatch& micro) {
  Batch batch = micro.inputs;
  for (const auto& [node, mask] : micro.masks) {
    batch.emplace(std::string(kMaskPrefix) + node, mask.unpacked());
  }
  return batch;
}

}  // namespace lockstep
