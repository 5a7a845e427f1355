// See scale_course.h.
#include "analysis/ranges/scale_course.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "emulation/format/format.h"
#include "src/policy/loss_scale.h"

namespace lockstep {
namespace {

// By step: the largest scale at which no gradient of the lane overflows.
std::vector<double> step_limits(const RunFile& run, const LaneInfo& lane) {
  const std::vector<Site>& sites = run.sites().sites;
  std::vector<double> limits;
  for (int64_t step = 0; step < run.steps(); ++step) {
    const std::vector<double> largest = run.moment(kReferenceIndex, "abs_max", step);
    double limit = std::numeric_limits<double>::infinity();
    for (const Site& site : sites) {
      const auto id = static_cast<size_t>(site.id);
      if (!site.scaled || site.stat_exempt || lane.site_formats[id].empty()) continue;
      if (largest[id] > 0) {
        limit = std::min(limit, find_format(lane.site_formats[id]).max_finite / largest[id]);
      }
    }
    limits.push_back(limit);
  }
  return limits;
}

SettledScale settled(const std::vector<double>& scales, const std::vector<bool>& skipped) {
  SettledScale out{.lo = std::numeric_limits<int>::max(), .hi = std::numeric_limits<int>::min()};
  std::map<int, int64_t> steps;
  for (size_t t = scales.size() / 2; t < scales.size(); ++t) {
    out.skips += skipped[t];
    if (!(scales[t] > 0)) continue;  // fallen to zero
    const int exponent = std::ilogb(scales[t]);
    ++steps[exponent];
    out.lo = std::min(out.lo, exponent);
    out.hi = std::max(out.hi, exponent);
  }
  if (steps.empty()) return {.skips = out.skips};
  out.mode = std::ranges::max_element(steps, {}, [](const auto& one) { return one.second; })->first;
  return out;
}

}  // namespace

std::vector<ScaleCourse> scale_courses(const RunFile& run) {
  std::vector<ScaleCourse> courses;
  if (run.measured_steps() < run.steps()) return courses;
  for (size_t l = 0; l < run.lanes().size(); ++l) {
    const LaneInfo& lane = run.lanes()[l];
    const int index = static_cast<int>(l);
    const bool is_policy = !lane.policy_text.empty() && !lane.is_reference;
    if (!is_policy || lane.site_formats.empty() || run.scaler_columns(index) != 1) continue;
    const Policy policy = policy_of(lane);
    const LossScaler& scaler = find_loss_scaler(policy.loss_scale.kind);
    if (!scaler.scales || scaler.check == LossScaler::Check::kNone) continue;
    std::vector<double> scales, recorded;
    std::vector<bool> skipped, recorded_skipped;
    LossScaleState state = scaler.initial(policy.loss_scale);
    for (const double limit : step_limits(run, lane)) {
      scales.push_back(state.scale);
      skipped.push_back(state.scale > limit);
      state = scaler.update(policy.loss_scale, state, skipped.back());
    }
    for (const ScalerRecord& record : run.scalers(index)) {
      recorded.push_back(record.scale);
      recorded_skipped.push_back(record.skipped);
    }
    courses.push_back({lane.name, settled(scales, skipped), settled(recorded, recorded_skipped)});
  }
  return courses;
}

}  // namespace lockstep
