// Reads a lane step by step and gathers what the rules say.
#include "analysis/findings/findings.h"

#include <algorithm>

#include "analysis/findings/flipped_decisions.h"
#include "analysis/findings/lost_shares.h"
#include "analysis/findings/lost_state.h"
#include "analysis/findings/missing_scaler.h"
#include "analysis/findings/nonfinite.h"
#include "analysis/findings/scale_story.h"
#include "analysis/findings/scaled_clip.h"
#include "analysis/findings/swamped_sums.h"
#include "analysis/run/run_data.h"
#include "src/capture/capture.h"
#include "src/policy/twin_lane.h"
#include "src/update/parameter_groups.h"

namespace lockstep {
namespace {

// Origins of infinities and NaN come as they happened, then the kinds in their order. A forward
// pass that lost most of a tensor comes before the gradients that vanish or overflow because of it.
int order_of(const SiteTable& sites, const Finding& finding) {
  constexpr double kMost = 0.5;
  const auto is_at = [&](auto holds) {
    return finding.site >= 0 && holds(sites.sites[static_cast<size_t>(finding.site)]);
  };
  // What is kept in a buffer: its error comes late.
  const bool of_buffer =
      finding.cause < 0 && is_at([](const Site& s) { return s.point == Point::kOutput; });
  const bool in_forward =
      !finding.backward && (finding.kind == FindingKind::kForwardUnderflow ||
                            finding.kind == FindingKind::kStorageUnderflow ||
                            (finding.kind == FindingKind::kSwamping && !of_buffer));
  const bool of_products = finding.kind == FindingKind::kSwamping &&
                           is_at([](const Site& s) { return s.point == Point::kAccumulator; });
  const double lost = of_products ? finding.value : finding.share;  // value: relative error
  const bool first = in_forward && lost >= kMost;
  const FindingKind kind = first ? FindingKind::kStateUnderflow : finding.kind;
  return std::max(static_cast<int>(kind), static_cast<int>(FindingKind::kInvalid));
}

// A state that divides the update and became zero makes weights jump: what is not finite in later
// steps follows from it.
void lead_with_lost_divisor(const std::vector<OptimizerState>& states, std::vector<Finding>& all) {
  const auto lost = std::ranges::find_if(all, [&](const Finding& f) {
    return f.kind == FindingKind::kStateUnderflow && states[static_cast<size_t>(f.site)].divides;
  });
  if (lost == all.end() || all.front().first_step <= lost->first_step) return;
  std::rotate(all.begin(), lost, lost + 1);
}

// By site id: what optimizer state the site holds; without a name elsewhere.
std::vector<OptimizerState> states_of(const SiteTable& sites, const RunOptions& options) {
  std::vector<OptimizerState> out(sites.sites.size());
  for (const Site& site : sites.sites) {
    if (site.role != Role::kOptimizerState) continue;
    Parameter parameter;
    parameter.name = parameter_of(site);
    parameter.layer = site.layer;
    const size_t group = group_of(parameter, options.groups);
    const OptimizerSpec& spec =
        group == 0 ? options.optimizer : options.groups[group - 1].optimizer;
    const auto states = find_optimizer(spec.name).states(numbers_of(spec));
    const auto index = static_cast<size_t>(site.index);
    if (index < states.size()) out[static_cast<size_t>(site.id)] = states[index];
  }
  return out;
}

// By site id, of the first one-ulp twin in the last measured step; empty without one.
std::vector<double> errors_of_twin(const RunFile& run) {
  const auto twin = std::ranges::find_if(
      run.lanes(), [](const LaneInfo& lane) { return twin_number(lane.name) > 0; });
  const int64_t step = run.last_measured(run.steps() - 1);
  if (twin == run.lanes().end() || step < 0) return {};
  const auto lane = static_cast<int>(twin - run.lanes().begin());
  const StepEvidence last = read_evidence(run, lane, step);
  std::vector<double> errors(run.sites().sites.size());
  for (size_t i = 0; i < errors.size(); ++i) errors[i] = share_of(last.err_sq[i], last.ref_sq[i]);
  return errors;
}

}  // namespace

bool is_candidate(const LaneInfo& lane) {
  return !lane.is_reference && lane.name != kTruthLane && twin_number(lane.name) == 0 &&
         lane.name != kCapturedLane;
}

FindingContext context_of(const RunFile& run, const Finding& finding, bool has_scaler) {
  return {finding, run.sites(), has_scaler, run.measured_steps(),
          run.measured_steps() == run.steps()};
}

std::vector<Finding> find_findings(const RunFile& run, int lane) {
  const LaneInfo& info = run.lanes()[static_cast<size_t>(lane)];
  if (!is_candidate(info)) return {};
  const bool synced = run.options().mode == LaneMode::kSynced;
  NonfiniteOrigins origins(lane, run.sites(), info.site_formats, synced);
  const std::vector<OptimizerState> states = states_of(run.sites(), run.options());
  ShareTally tally(lane, run.sites(), info.site_formats);
  StoredEvidence stored(run.sites()), stored_in_reference(run.sites());
  MissingScaler missing(run.sites(), info.site_formats);
  const std::vector<ScalerRecord> scalers = run.scalers(lane);
  const int64_t nonfinite_at = first_nonfinite_loss(run.loss(lane), scalers);
  const int64_t end = nonfinite_at < 0 ? run.steps() : nonfinite_at;
  for (int64_t step = 0; step < run.steps(); ++step) {
    if (!run.is_measured(step)) continue;
    StepEvidence mine = read_evidence(run, lane, step);
    StepEvidence reference = read_evidence(run, 0, step);
    const bool skipped = scalers[static_cast<size_t>(step)].skipped;
    if (step < end) {
      missing.add(reference);
      tally.add(step, skipped, has_same_weights(run, step), mine, reference,
                run.updates(lane, step), run.updates(0, step));
    }
    stored.complete(mine);
    stored_in_reference.complete(reference);
    origins.add(step, skipped, mine, reference);
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
  if (const auto clip = find_scaled_clip(lane, run.options().clip_norm, run.gradient_norm(lane),
                                         run.gradient_norm(0), scalers)) {
    all.push_back(*clip);
  }
  const Policy policy = policy_of(info);
  if (auto flipped =
          find_flipped_decisions(lane, run.sites(), run.decisions(lane), run.decisions(0))) {
    flipped->last_step = std::max<int64_t>(run.last_measured(run.steps() - 1), 0);
    flipped->steps = run.measured_steps();
    const auto site = static_cast<size_t>(flipped->site);
    if (site < info.site_formats.size()) flipped->format = info.site_formats[site];
    all.push_back(*flipped);
  }
  add(find_lost_shares(tally, policy));
  if (const auto lost = find_lost_state(tally, states)) all.push_back(*lost);
  add(find_swamped_sums(tally, policy, run.sums(lane), run.sums(0), errors_of_twin(run)));
  missing.fold(policy, scalers, all);
  for (const std::string& warning : info.warnings) {
    all.push_back({.kind = FindingKind::kLostConstant, .lane = lane, .text = warning});
  }
  // A stored value that became zero and made an operation invalid is that finding's cause.
  std::erase_if(all, [&](const Finding& f) {
    return f.kind == FindingKind::kStorageUnderflow &&
           std::ranges::any_of(of_values, [&](const Finding& o) { return o.cause == f.site; });
  });
  for (Finding& f : all) {
    const bool is_state =
        f.kind == FindingKind::kStateOverflow || f.kind == FindingKind::kStateUnderflow;
    if (is_state) f.text = states[static_cast<size_t>(f.site)].name;
  }
  std::ranges::stable_sort(all, {}, [&](const Finding& f) { return order_of(run.sites(), f); });
  lead_with_lost_divisor(states, all);
  return all;
}

}  // namespace lockstep
