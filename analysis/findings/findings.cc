// Gathers evidence step by step, then what the rules say of it.
#include "analysis/findings/findings.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <utility>

#include "analysis/findings/finding_kinds.h"
#include "analysis/findings/flipped_decisions.h"
#include "analysis/findings/lost_shares.h"
#include "analysis/findings/lost_state.h"
#include "analysis/findings/missing_scaler.h"
#include "analysis/findings/nonfinite.h"
#include "analysis/findings/scale_story.h"
#include "analysis/findings/scaled_clip.h"
#include "analysis/findings/share_tally.h"
#include "analysis/findings/step_evidence.h"
#include "analysis/findings/swamped_sums.h"
#include "analysis/run/nonfinite_counts.h"
#include "src/capture/capture.h"
#include "src/policy/twin_lane.h"
#include "src/record/run/play.h"
#include "src/update/parameter_groups.h"

namespace lockstep {
namespace {

// Origins of infinities and NaN come as they happened, then the kinds in their order. A forward
// pass that lost most of a tensor comes before the gradients that vanish or overflow because of it,
// and sums of the forward pass that are wrong come before lost updates.
int order_of(const SiteTable& sites, const Finding& finding) {
  constexpr double kMost = 0.5;
  const auto is_at = [&](auto holds) {
    return finding.site >= 0 && holds(sites.sites[static_cast<size_t>(finding.site)]);
  };
  // What is kept in a buffer: its error comes late.
  const bool of_buffer = finding.cause < 0 && !finding.is_other_sum &&
                         is_at([](const Site& s) { return s.point == Point::kOutput; });
  const bool in_forward =
      !finding.backward && (finding.kind == FindingKind::kForwardUnderflow ||
                            finding.kind == FindingKind::kStorageUnderflow ||
                            (finding.kind == FindingKind::kSwamping && !of_buffer));
  const bool of_products = finding.kind == FindingKind::kSwamping &&
                           is_at([](const Site& s) { return s.point == Point::kAccumulator; });
  const double lost = of_products ? finding.value : finding.share;  // value: relative error
  const bool first = in_forward && lost >= kMost;
  // Wrong sums come before the updates that are made from them.
  const bool has_wrong_sums =
      in_forward && finding.kind == FindingKind::kSwamping && (of_products || finding.is_other_sum);
  const FindingKind kind = first            ? FindingKind::kStateUnderflow
                           : has_wrong_sums ? std::min(finding.kind, FindingKind::kWrongLoss)
                                            : finding.kind;
  return std::max(static_cast<int>(kind), static_cast<int>(FindingKind::kInvalid));
}

// Of the lane's life; 1 without one.
double last_scale(std::span<const ScalerRecord> scalers) {
  double scale = 1;
  for (const ScalerRecord& s : scalers) scale = std::isfinite(s.scale) ? s.scale : scale;
  return scale;
}

// A wrong loss without a place of its own is not told where another finding of the forward pass
// explains it.
void add_wrong_loss(const Finding& wrong, std::vector<Finding>& all) {
  const bool is_explained = std::ranges::any_of(all, [](const Finding& f) {
    return !f.backward && (row_of(f.kind).breaks || f.kind == FindingKind::kStorageUnderflow ||
                           f.kind == FindingKind::kForwardUnderflow ||
                           f.kind == FindingKind::kSaturated || f.kind == FindingKind::kSwamping);
  });
  if (wrong.kind == FindingKind::kWrongLoss && is_explained) return;
  all.push_back(wrong);
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
    parameter.type.shape = site.shape;
    const size_t group = group_of(parameter, options.groups);
    const OptimizerSpec& spec =
        group == 0 ? options.optimizer : options.groups[group - 1].optimizer;
    const auto states = find_optimizer(spec.name).states(numbers_of(spec), site.shape);
    const auto index = static_cast<size_t>(site.index);
    if (index < states.size()) out[static_cast<size_t>(site.id)] = states[index];
  }
  return out;
}

bool is_weight_gradient(const Site& site) {
  return site.role == Role::kGradWeight && site.point == Point::kOutput && is_in_graph(site);
}

// The first one-ulp twin; -1: none.
int twin_of(const RunView& run) {
  const auto twin = std::ranges::find_if(
      run.lanes, [](const LaneInfo& lane) { return twin_number(lane.name) > 0; });
  return twin == run.lanes.end() ? -1 : static_cast<int>(twin - run.lanes.begin());
}

}  // namespace

bool is_candidate(const LaneInfo& lane) {
  return !lane.is_reference && lane.name != kTruthLane && twin_number(lane.name) == 0 &&
         lane.name != kCapturedLane;
}

struct FindingTally::Impl {
  Impl(const RunView& facts, int its_lane)
      : run(facts),
        lane(its_lane),
        info(facts.lanes[static_cast<size_t>(its_lane)]),
        none(facts.sites.sites.size()),
        origins(its_lane, facts.sites, info.site_formats, facts.options.mode == LaneMode::kSynced),
        states(states_of(facts.sites, facts.options)),
        shares(its_lane, facts.sites, info.site_formats),
        stored(facts.sites),
        stored_in_reference(facts.sites),
        missing(facts.sites, info.site_formats),
        equal(its_lane, facts.sites, info.site_formats),
        scalers(info.scaler_count()),
        mine(none.size()),
        reference(none.size()),
        twin(twin_of(facts)) {}

  void add(const StepRecord& record);
  void add_reference(const StepRecord& record);
  void add_sites(int64_t step, const LaneStep& own, const LaneStep& of_reference);
  void add_twin(const LaneStep& step);
  // A dead lane may lack its sites.
  const std::vector<SiteRecord>& sites_of(const LaneStep& step) const {
    return step.sites.size() == none.size() ? step.sites : none;
  }
  bool has_finite_gradients(const LaneStep& step) const {
    const StepEvidence evidence(sites_of(step));
    return std::ranges::none_of(run.sites.sites, [&](const Site& site) {
      return is_weight_gradient(site) && evidence.nonfinite(static_cast<size_t>(site.id));
    });
  }
  std::string gradient_format() const {
    const auto site = std::ranges::find_if(run.sites.sites, is_weight_gradient);
    const auto i = static_cast<size_t>(site - run.sites.sites.begin());
    return i < info.site_formats.size() ? info.site_formats[i] : "";
  }
  bool has_scaler() const { return std::ranges::any_of(scalers, uses_loss_scale); }
  int64_t steps() const { return static_cast<int64_t>(gradient_norms.size()); }

  // Sums over the steps, by site id.
  struct Sums {
    explicit Sums(size_t sites) : health(sites), decisions(sites) {}
    void add(const std::vector<SiteRecord>& step, bool samples_sums) {
      for (size_t i = 0; i < step.size(); ++i) {
        if (samples_sums) health[i].merge(step[i].health);
        decisions[i].merge(step[i].decisions);
      }
    }
    std::vector<AccumulatorHealth> health;
    std::vector<DecisionStats> decisions;
  };

  const RunView run;
  const int lane;
  const LaneInfo& info;
  const std::vector<SiteRecord> none;
  NonfiniteOrigins origins;
  const std::vector<OptimizerState> states;
  ShareTally shares;
  StoredEvidence stored, stored_in_reference;
  MissingScaler missing;
  EqualWeightsTally equal;
  std::vector<std::vector<ScalerRecord>> scalers;  // by scaler and step
  std::vector<double> gradient_norms, gradient_norms_of_reference;
  std::vector<double> losses_of_reference;
  std::vector<bool> finite_gradients;  // by step: it was taken and measured, with finite gradients
  Sums mine, reference;
  const int twin;                      // its lane; -1: none
  std::vector<double> errors_of_twin;  // by site id, in the last measured step; empty: no twin
  bool is_lost = false;                // in this or an earlier step the loss was not finite
  int64_t lost_at = -1;                // of the reference, if it is lost
  int64_t measured_steps = 0, last_measured = -1;
};

// What is not finite in the reference, whatever the format.
void FindingTally::Impl::add_reference(const StepRecord& record) {
  const LaneStep& own = record.lanes[static_cast<size_t>(lane)];
  if (is_lost || !record.is_measured) return;
  is_lost = has_nonfinite_loss(own);
  lost_at = record.step;
  origins.add(record.step, is_skipped(own), sites_of(own), none);
}

void FindingTally::Impl::add(const StepRecord& record) {
  if (info.is_reference) return add_reference(record);
  const LaneStep& own = record.lanes[static_cast<size_t>(lane)];
  const LaneStep& of_reference = record.lanes.front();
  constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
  for (size_t i = 0; i < scalers.size(); ++i) {
    scalers[i].push_back(own.alive ? own.scalers.at(i) : ScalerRecord{.scale = kNone});
  }
  gradient_norms.push_back(own.alive ? own.gradient_norm : kNone);
  gradient_norms_of_reference.push_back(of_reference.alive ? of_reference.gradient_norm : kNone);
  losses_of_reference.push_back(of_reference.loss);
  finite_gradients.push_back(run.options.clip_norm > 0 && record.is_measured && own.alive &&
                             !is_skipped(own) && has_finite_gradients(own));
  is_lost = is_lost || has_nonfinite_loss(own);
  if (!record.is_measured) return;
  ++measured_steps;
  last_measured = record.step;
  const bool samples_sums = run.options.measuring.samples_sums(record.step);
  mine.add(sites_of(own), samples_sums);
  reference.add(sites_of(of_reference), samples_sums);
  const LaneStep* of_twin = twin < 0 ? nullptr : &record.lanes[static_cast<size_t>(twin)];
  if (of_twin != nullptr) add_twin(*of_twin);
  if (run.has_same_weights(record.step)) equal.add(record.step, own, of_reference, of_twin);
  add_sites(record.step, own, of_reference);
}

void FindingTally::Impl::add_sites(int64_t step, const LaneStep& own,
                                   const LaneStep& of_reference) {
  StepEvidence evidence(sites_of(own)), beside(sites_of(of_reference));
  const bool skipped = is_skipped(own);
  if (!is_lost) {
    missing.add(beside);
    shares.add(step, skipped, run.has_same_weights(step), evidence, beside);
  }
  stored.complete(evidence);
  stored_in_reference.complete(beside);
  origins.add(step, skipped, evidence, beside);
}

void FindingTally::Impl::add_twin(const LaneStep& step) {
  const std::vector<SiteRecord>& sites = sites_of(step);
  errors_of_twin.resize(sites.size());
  for (size_t i = 0; i < sites.size(); ++i) {
    errors_of_twin[i] = share_of(sites[i].error.err_sq, sites[i].error.ref_sq);
  }
  shares.add_twin(errors_of_twin);
}

FindingTally::FindingTally(const RunView& run, int lane) {
  const LaneInfo& info = run.lanes[static_cast<size_t>(lane)];
  if (is_candidate(info) || info.is_reference) impl_ = std::make_unique<Impl>(run, lane);
}
FindingTally::~FindingTally() = default;

void FindingTally::on_step(const StepRecord& record) {
  if (impl_) impl_->add(record);
}

std::vector<Finding> FindingTally::findings() const {
  if (!impl_) return {};
  const Impl& of = *impl_;
  const SiteTable& sites = of.run.sites;
  std::vector<Finding> all = of.origins.findings();
  if (of.info.is_reference) {
    // Infinities that did no harm came before; a gradient's show in the loss of the next step.
    std::erase_if(all,
                  [&](const Finding& f) { return !of.is_lost || f.last_step + 1 < of.lost_at; });
    return all;
  }
  const auto add = [&all](const std::vector<Finding>& more) {
    all.insert(all.end(), more.begin(), more.end());
  };
  const std::vector<Finding> of_values = all;
  for (const std::vector<ScalerRecord>& scaler : of.scalers) {  // one for each loss, or one
    add(scale_findings(of.info, of.lane, scaler, of.origins.skips_by_site(), sites, of_values));
  }
  const std::vector<ScalerRecord>& scalers = of.scalers.front();
  if (const auto clip = find_scaled_clip(of.lane, of.run.options.clip_norm, of.gradient_norms,
                                         of.gradient_norms_of_reference, scalers)) {
    all.push_back(*clip);
  }
  const Policy policy = policy_of(of.info);
  const bool clips_scaled = policy.loss_scale_use.clip_before_unscale;
  if (const auto norm = find_overflowed_norm(
          of.lane, of.gradient_norms, of.gradient_norms_of_reference, of.finite_gradients,
          clips_scaled ? last_scale(scalers) : 1, of.gradient_format())) {
    all.push_back(*norm);
  }
  if (auto flipped =
          find_flipped_decisions(of.lane, sites, of.mine.decisions, of.reference.decisions)) {
    flipped->last_step = std::max<int64_t>(of.last_measured, 0);
    flipped->steps = of.measured_steps;
    const auto site = static_cast<size_t>(flipped->site);
    if (site < of.info.site_formats.size()) flipped->format = of.info.site_formats[site];
    all.push_back(*flipped);
  }
  add(find_lost_shares(of.shares, policy));
  if (const auto lost = find_lost_state(of.shares, of.states)) all.push_back(*lost);
  add(find_swamped_sums(of.shares, policy, of.mine.health, of.reference.health, of.errors_of_twin));
  of.missing.fold(policy, scalers, all);
  if (const auto wrong = of.equal.find(of.losses_of_reference)) add_wrong_loss(*wrong, all);
  const std::vector<std::string>& of_fp32 = of.run.lanes.front().warnings;
  for (const std::string& warning : of.info.warnings) {
    if (std::ranges::count(of_fp32, warning) > 0) continue;  // no fault of the lane's formats
    all.push_back({.kind = FindingKind::kLostConstant, .lane = of.lane, .text = warning});
  }
  // A stored value that became zero and made an operation invalid is that finding's cause.
  std::erase_if(all, [&](const Finding& f) {
    return f.kind == FindingKind::kStorageUnderflow &&
           std::ranges::any_of(of_values, [&](const Finding& o) { return o.cause == f.site; });
  });
  for (Finding& f : all) {
    const bool is_state =
        f.kind == FindingKind::kStateOverflow || f.kind == FindingKind::kStateUnderflow;
    if (is_state) f.text = of.states[static_cast<size_t>(f.site)].name;
  }
  std::ranges::stable_sort(all, {}, [&](const Finding& f) { return order_of(sites, f); });
  lead_with_lost_divisor(of.states, all);
  return all;
}

EqualStep FindingTally::equal_step() const {
  return impl_ ? impl_->equal.judged(impl_->losses_of_reference) : EqualStep{};
}

FindingContext FindingTally::context_of(const Finding& finding) const {
  return {finding,
          impl_->run.sites,
          impl_->has_scaler(),
          impl_->measured_steps,
          impl_->measured_steps == impl_->steps(),
          impl_->info.is_reference};
}

std::vector<ToldFinding> tell_findings(const FindingTally& tally) {
  std::vector<ToldFinding> told;
  for (Finding& finding : tally.findings()) {
    std::string sentence = row_of(finding.kind).sentence(tally.context_of(finding));
    told.push_back({.finding = std::move(finding), .sentence = std::move(sentence)});
  }
  return told;
}

std::vector<int> lanes_for_findings(const RunView& run, int lane) {
  std::vector<int> lanes = {lane};
  for (const int other : {kReferenceIndex, twin_of(run)}) {
    if (other >= 0 && std::ranges::count(lanes, other) == 0) lanes.push_back(other);
  }
  return lanes;
}

std::vector<ToldFinding> find_findings(const RunFile& run, int lane) {
  const RunView facts = view_of(run);
  const LaneInfo& info = facts.lanes[static_cast<size_t>(lane)];
  if (!is_candidate(info) && !info.is_reference) return {};
  FindingTally tally(facts, lane);
  Observer* const observers[] = {&tally};
  play(run, lanes_for_findings(facts, lane), observers);
  return tell_findings(tally);
}

}  // namespace lockstep
