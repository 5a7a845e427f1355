// See scale_course.h.
#include "analysis/ranges/scale_course.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "emulation/format/format.h"
#include "src/policy/loss_scale.h"
#include "src/record/run/play.h"

namespace lockstep {
namespace {

// The largest scale at which no gradient of a lane overflows, by step: of the reference's
// gradients in the lane's formats.
class StepLimits : public Observer {
 public:
  StepLimits(const SiteTable& sites, const std::vector<LaneInfo>& lanes) {
    for (const LaneInfo& lane : lanes) {
      std::vector<double>& largest = largest_.emplace_back(sites.sites.size());
      for (const Site& site : sites.sites) {
        const auto id = static_cast<size_t>(site.id);
        const bool holds = site.scaled && !site.stat_exempt && !lane.site_formats.empty() &&
                           !lane.site_formats[id].empty();
        if (holds) largest[id] = find_format(lane.site_formats[id]).max_finite;
      }
    }
    limits_.resize(lanes.size());
  }
  void on_step(const StepRecord& record) override {
    const std::vector<SiteRecord>& reference = record.lanes[kReferenceIndex].sites;
    for (size_t lane = 0; lane < limits_.size(); ++lane) {
      double limit = std::numeric_limits<double>::infinity();
      for (size_t id = 0; id < reference.size(); ++id) {
        const double largest = reference[id].stats.abs_max;
        if (largest_[lane][id] > 0 && largest > 0) {
          limit = std::min(limit, largest_[lane][id] / largest);
        }
      }
      limits_[lane].push_back(limit);
    }
  }
  const std::vector<double>& of_lane(size_t lane) const { return limits_[lane]; }

 private:
  std::vector<std::vector<double>> largest_;  // [lane][site]: of the format; 0: not held
  std::vector<std::vector<double>> limits_;   // [lane][step]
};

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

bool has_several_scalers(const RunFile& run, int lane) {
  return run.steps() > 0 && run.step(lane, 0, /*histograms=*/false).scalers.size() != 1;
}

}  // namespace

std::vector<ScaleCourse> scale_courses(const RunFile& run) {
  std::vector<ScaleCourse> courses;
  if (run.measured_steps() < run.steps()) return courses;
  StepLimits limits(run.sites(), run.lanes());
  play_reference(run, limits);
  for (size_t l = 0; l < run.lanes().size(); ++l) {
    const LaneInfo& lane = run.lanes()[l];
    const int index = static_cast<int>(l);
    const bool is_policy = !lane.policy_text.empty() && !lane.is_reference;
    if (!is_policy || lane.site_formats.empty() || has_several_scalers(run, index)) continue;
    const Policy policy = policy_of(lane);
    const LossScaler& scaler = find_loss_scaler(policy.loss_scale.kind);
    if (!scaler.scales || scaler.check == LossScaler::Check::kNone) continue;
    std::vector<double> scales, recorded;
    std::vector<bool> skipped, recorded_skipped;
    LossScaleState state = scaler.initial(policy.loss_scale);
    for (const double limit : limits.of_lane(l)) {
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
