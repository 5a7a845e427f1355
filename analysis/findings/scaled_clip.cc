// See scaled_clip.h.
#include "analysis/findings/scaled_clip.h"

#include <algorithm>
#include <cmath>

#include "emulation/format/format.h"

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

std::optional<Finding> find_overflowed_norm(int lane, std::span<const double> norms,
                                            std::span<const double> of_reference,
                                            const std::vector<bool>& finite, double scale,
                                            const std::string& format) {
  Finding f{.kind = FindingKind::kSumOverflow, .lane = lane, .format = format, .scale = scale};
  for (size_t i = 0; i < std::min(norms.size(), finite.size()); ++i) {
    if (!finite[i] || !std::isinf(norms[i]) || !std::isfinite(of_reference[i])) continue;
    if (f.steps == 0) f.first_step = static_cast<int64_t>(i);
    f.last_step = static_cast<int64_t>(i);
    f.steps += 1;
    f.value = std::max(f.steps == 1 ? 0 : f.value, of_reference[i] * scale);
  }
  if (f.steps == 0) return std::nullopt;
  if (!format.empty()) f.limit = find_format(format).max_finite;
  f.backward = true;
  return f;
}

}  // namespace lockstep
