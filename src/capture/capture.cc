#include "src/capture/capture.h"

#include <algorithm>
#include <utility>

#include "src/update/optimizers.h"

namespace lockstep {

void unpack_batch(const CapturedMicroBatch& micro, Batch& batch) {
  Batch old = std::exchange(batch, {});
  const auto reuse = [&](const std::string& name) -> Tensor& {
    auto kept = old.extract(name);
    return kept ? batch.insert(std::move(kept)).position->second : batch[name];
  };
  for (const auto& [path, values] : micro.inputs) reuse(path) = values;
  for (const auto& [node, mask] : micro.masks) mask.unpack(reuse(std::string(kMaskPrefix) + node));
}

bool records_updates(const Capture& capture) {
  return capture.optimizer == recorded_updates().name;
}

bool is_inference(const Capture& capture) {
  return records_updates(capture) &&
         std::ranges::all_of(capture.groups, &std::vector<std::string>::empty);
}

}  // namespace lockstep
