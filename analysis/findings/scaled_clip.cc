// See scaled_clip.h.
#include "analysis/findings/scaled_clip.h"

#include <algorithm>

namespace lockstep {

std::optional<Finding> find_scaled_clip(int lane, double clip_norm, std::span<const double> norms,
                                        std::span<const double> of_reference,
                                        std::span<const ScalerRecord> scalers) {
  if (!(clip_norm > 0)) return std::nullopt;
  Finding f{.kind = FindingKind::kScaledClip, .lane = lane, .first_step = -1, .limit = clip_norm};
  int64_t taken = 0;
  const size_t steps = std::min({norms.size(), of_reference.size(), scalers.size()});
  for (size_t i = 0; i < steps; ++i) {
    if (scalers[i].skipped) continue;
    ++taken;
    const double scale = scalers[i].scale, norm = norms[i];
    const bool clipped_scaled = scale >= kLeastClippedScale && norm > clip_norm &&
                                kNormSlack * norm >= scale * of_reference[i];
    if (!clipped_scaled) continue;  // NaN, too
    if (f.first_step < 0) f.first_step = static_cast<int64_t>(i);
    f.last_step = static_cast<int64_t>(i);
    f.steps += 1;
    f.value = norm;
    f.scale = scale;
  }
  if (f.steps == 0 || 2 * f.steps < taken) return std::nullopt;
  return f;
}

}  // namespace lockstep
