// See captured_run.h.
#include "analysis/captured_run.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "src/graph/json.h"

namespace lockstep {
namespace {

void compare_scalers(const RunFile& run, int lane, int captured, CapturedComparison& out) {
  const std::vector<ScalerRecord> theirs = run.scalers(captured), ours = run.scalers(lane);
  for (size_t step = 0; step < std::min(theirs.size(), ours.size()); ++step) {
    if (!std::isfinite(ours[step].scale)) return;  // it has died
    ++out.compared_steps;
    if (ours[step].found_inf == theirs[step].found_inf) continue;
    out.disagreement = {static_cast<int64_t>(step), theirs[step], ours[step]};
    return;
  }
}

// Parameters without a gradient have no norm.
double norm_of(std::span<const double> norms) {
  double squares = 0;
  for (const double norm : norms) squares += std::isnan(norm) ? 0 : norm * norm;
  return std::sqrt(squares);
}

NormComparison compare_norms(int64_t step, std::span<const double> theirs,
                             std::span<const double> ours, const std::vector<Parameter>& names) {
  NormComparison out{step, norm_of(theirs), norm_of(ours), "", 1};
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

}  // namespace

CapturedComparison compare_with_captured(const RunFile& run, int lane, int captured) {
  CapturedComparison out;
  compare_scalers(run, lane, captured, out);
  const std::vector<double> theirs = run.gradient_norms(captured), ours = run.gradient_norms(lane);
  const std::vector<Parameter> names = graph_from_json(run.graph_json()).parameters;
  const size_t width = names.size();
  if (theirs.size() != ours.size() || width == 0) return out;
  for (size_t step = 0; (step + 1) * width <= theirs.size(); ++step) {
    const auto row = [&](const std::vector<double>& of) {
      return std::span(of).subspan(step * width, width);
    };
    const bool recorded = std::ranges::any_of(row(theirs), [](double x) { return !std::isnan(x); });
    const double all = norm_of(row(theirs));
    if (!recorded || !std::isfinite(all)) continue;
    out.last = compare_norms(static_cast<int64_t>(step), row(theirs), row(ours), names);
    if (out.first.step < 0) out.first = out.last;
  }
  return out;
}

}  // namespace lockstep
