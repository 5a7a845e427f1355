// Reads a lane step by step and gathers what the rules say.
#include "analysis/findings/findings.h"

#include <algorithm>

#include "analysis/findings/lost_shares.h"
#include "analysis/findings/nonfinite.h"
#include "analysis/findings/scale_story.h"
#include "analysis/run/run_data.h"
#include "src/capture/capture.h"
#include "src/policy/find_policy.h"
#include "src/policy/twin_lane.h"
#include "src/train/lane_name.h"

namespace lockstep {
namespace {

// Origins of infinities and NaN come as they happened, then the kinds in their order. A forward
// pass that lost most of a tensor comes before the gradients that vanish because of it.
int order_of(const Finding& finding) {
  constexpr double kMost = 0.5;
  const bool forward_first = (finding.kind == FindingKind::kForwardUnderflow ||
                              finding.kind == FindingKind::kStorageUnderflow) &&
                             finding.share >= kMost;
  const FindingKind kind = forward_first ? FindingKind::kStateUnderflow : finding.kind;
  return std::max(static_cast<int>(kind), static_cast<int>(FindingKind::kInvalid));
}

Policy policy_of(const LaneInfo& info) {
  return parse_recorded_policy(info.policy_text, parse_lane_name(info.name).policy);
}

}  // namespace

bool is_candidate(const LaneInfo& lane) {
  return !lane.is_reference && lane.name != kTruthLane && twin_number(lane.name) == 0 &&
         lane.name != kCapturedLane;
}

std::vector<Finding> find_findings(const RunFile& run, int lane) {
  const LaneInfo& info = run.lanes()[static_cast<size_t>(lane)];
  if (!is_candidate(info)) return {};
  NonfiniteOrigins origins(lane, run.sites(), info.site_formats);
  LostShares shares(lane, run.sites(), info.site_formats);
  const std::vector<ScalerRecord> scalers = run.scalers(lane);
  const int64_t nonfinite_at = first_nonfinite_loss(run.loss(lane), scalers);
  const int64_t end = nonfinite_at < 0 ? run.steps() : nonfinite_at;
  for (int64_t step = 0; step < run.steps(); ++step) {
    const StepEvidence mine = read_evidence(run, lane, step);
    const StepEvidence reference = read_evidence(run, 0, step);
    const bool skipped = scalers[static_cast<size_t>(step)].skipped;
    origins.add(step, skipped, mine, reference);
    if (step < end) {
      shares.add(step, skipped, mine, reference, run.updates(lane, step), run.updates(0, step));
    }
  }
  std::vector<Finding> all = origins.findings();
  const auto add = [&all](const std::vector<Finding>& more) {
    all.insert(all.end(), more.begin(), more.end());
  };
  const std::vector<Finding> of_values = all;
  for (size_t i = 0; i < info.scaler_count(); ++i) {  // one for each loss, or one
    add(scale_findings(info, lane, run.scalers(lane, i), origins.skips_by_site(), run.sites(),
                       of_values));
  }
  add(shares.findings(policy_of(info), run.sums(lane), run.sums(0)));
  for (const std::string& warning : info.warnings) {
    all.push_back({.kind = FindingKind::kLostConstant, .lane = lane, .text = warning});
  }
  std::ranges::stable_sort(all, {}, order_of);
  return all;
}

}  // namespace lockstep
