// See captured_run.h.
#include "analysis/faithful/captured_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "src/graph/json.h"
#include "src/train/lane/captured_lane.h"

namespace lockstep {
namespace {

void compare_scalers(const RunFile& run, int lane, int captured, CapturedComparison& out) {
  const std::vector<ScalerRecord> theirs = run.scalers(captured), ours = run.scalers(lane);
  for (size_t step = 0; step < std::min(theirs.size(), ours.size()); ++step) {
    if (!std::isfinite(ours[step].scale)) return;  // the lane has died
    ++out.compared_steps;
    if (ours[step].found_inf == theirs[step].found_inf) continue;
    out.disagreement = {static_cast<int64_t>(step), theirs[step], ours[step]};
    return;
  }
}

// Over the parameters with a captured gradient.
double norm_of(std::span<const double> norms, std::span<const double> captured) {
  double squares = 0;
  for (size_t i = 0; i < norms.size(); ++i) {
    if (!std::isnan(captured[i])) squares += norms[i] * norms[i];
  }
  return std::sqrt(squares);
}

// Does `lane` do what the captured run did, with its own weights?
bool does_the_same(const RunFile& run, int lane, int captured) {
  if (run.options().mode != LaneMode::kFree || run.options().decisions == Decisions::kOwn)
    return false;
  const std::string wanted =
      fmt::format("\n{}{}\n", kCapturedEqual, run.lanes()[static_cast<size_t>(lane)].name);
  return run.lanes()[static_cast<size_t>(captured)].policy_text.find(wanted) != std::string::npos;
}

std::vector<double> loss_of(const RunFile& run, std::string_view name) {
  for (size_t lane = 0; lane < run.lanes().size(); ++lane) {
    if (run.lanes()[lane].name == name) return run.loss(static_cast<int>(lane));
  }
  return {};
}

}  // namespace

NormComparison compare_norms(int64_t step, std::span<const double> theirs,
                             std::span<const double> ours, const std::vector<Parameter>& names) {
  NormComparison out{step, norm_of(theirs, theirs), norm_of(ours, theirs), "", 1};
  double largest = 0, furthest = -1;
  for (const double norm : theirs) largest = std::max(largest, std::isnan(norm) ? 0 : norm);
  for (size_t i = 0; i < theirs.size(); ++i) {
    if (!(theirs[i] >= kSmallNorm * largest) || theirs[i] == 0) continue;
    const double ratio = ours[i] / theirs[i];
    const double off = std::isfinite(ratio) && ratio > 0 ? std::abs(std::log(ratio)) : HUGE_VAL;
    if (off <= furthest) continue;
    furthest = off;
    out.furthest = names[i].name;
    out.furthest_ratio = ratio;
  }
  return out;
}

LossComparison compare_losses(std::span<const double> captured, std::span<const double> lane,
                              std::span<const double> fp32, std::span<const double> twin,
                              bool is_low) {
  LossComparison out;
  double chaos = 0, low = 0, nearest = -1;
  for (size_t t = 0; t < captured.size(); ++t) {
    if (!std::isfinite(captured[t])) continue;
    ++out.compared_steps;
    if (!twin.empty()) chaos = std::fmax(chaos, std::abs(twin[t] - fp32[t]));
    if (is_low) low = std::fmax(low, std::abs(captured[t] - fp32[t]));
    const double bound =
        std::max({kLossFloor * std::abs(captured[t]), kTwinTimes * chaos, kFp32Share * low});
    const double distance = std::abs(lane[t] - captured[t]);
    const bool departs = !(distance <= bound);
    const double share = distance / bound;
    if (departs || share > nearest) {
      out.step = static_cast<int64_t>(t);
      out.captured = captured[t], out.lane = lane[t], out.bound = bound;
      nearest = share;
    }
    if (!departs) continue;
    out.departure = out.step;
    break;
  }
  return out;
}

CapturedComparison compare_with_captured(const RunFile& run, int lane, int captured) {
  CapturedComparison out;
  compare_scalers(run, lane, captured, out);
  if (does_the_same(run, lane, captured)) {
    out.losses = compare_losses(run.loss(captured), run.loss(lane), run.loss(0),
                                loss_of(run, kTwinLane), lane != 0);
  }
  const std::vector<LaneStep> theirs = run.course(captured), ours = run.course(lane);
  const std::vector<Parameter> names = graph_from_json(run.graph_json()).parameters;
  const std::vector<double> none(names.size(), std::numeric_limits<double>::quiet_NaN());
  for (size_t step = 0; step < theirs.size(); ++step) {
    const std::vector<double>& norms = theirs[step].gradient_norms;
    const std::vector<double>& own = ours[step].alive ? ours[step].gradient_norms : none;
    if (norms.empty() || norms.size() != names.size() || own.size() != names.size()) return out;
    const bool recorded = std::ranges::any_of(norms, [](double x) { return !std::isnan(x); });
    if (!recorded || !std::isfinite(norm_of(norms, norms))) continue;
    out.last = compare_norms(static_cast<int64_t>(step), norms, own, names);
    if (out.first.step < 0) out.first = out.last;
  }
  return out;
}

}  // namespace lockstep
