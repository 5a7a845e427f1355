// See main_finding.h.
#include "analysis/report/main_finding.h"

#include <algorithm>

#include "analysis/findings/finding_kinds.h"

namespace lockstep {

// The list explains a lane that broke only if a finding of a kind
// that breaks is in it; the origin leads the list even if it is of another kind.
const Finding* main_finding(const LaneReport& lane) {
  if (lane.findings.empty()) return nullptr;
  const bool explains =
      lane.judgement.verdict != Verdict::kBroke ||
      std::ranges::any_of(lane.findings, [](const Finding& f) { return row_of(f.kind).breaks; });
  return explains ? &lane.findings.front() : nullptr;
}

bool has_sentence(const LaneReport& lane) {
  return lane.is_candidate() || lane.judgement.verdict == Verdict::kBroke;
}

int64_t lane_break_step(const LaneReport& lane) {
  const Finding* finding = main_finding(lane);
  if (finding != nullptr) {
    return finding->kind == FindingKind::kScaleFloor ? finding->last_step : finding->first_step;
  }
  return lane.nonfinite_loss_at >= 0 ? lane.nonfinite_loss_at : lane.info.died_at;
}

}  // namespace lockstep
