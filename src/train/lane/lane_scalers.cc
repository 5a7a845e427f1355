// See lane_scalers.h.
#include "src/train/lane/lane_scalers.h"

#include <fmt/format.h>

#include <algorithm>

#include "src/execute/finite.h"
#include "src/train/lane/lane_name.h"
#include "src/train/loss_passes.h"

namespace lockstep {
namespace {

bool any(const std::vector<bool>& list) {
  return std::ranges::count(list, true) > 0;
}

// Searches the sites for which `counts` is true.
int32_t first_nonfinite_site(const SiteTable& sites, const std::vector<SiteRecord>& records,
                             const std::vector<bool>& counts) {
  for (size_t i = 0; i < records.size(); ++i) {
    if (!records[i].measured || !counts[i]) continue;
    if (records[i].stats.nonfinite_seen(sites.sites[i].stat_exempt)) return static_cast<int32_t>(i);
  }
  return -1;
}

}  // namespace

LaneScalers::LaneScalers(LaneFrame& frame)
    : frame_(frame),
      scaler_(find_loss_scaler(frame.policy().loss_scale.kind)),
      states_{scaler_.initial(frame.policy().loss_scale)} {
  take_captured(frame);
  const Graph& graph = *frame.context.step_graph;
  if (!has_scaler_per_loss(frame.policy(), graph)) return;
  for (const BackwardPass& pass : graph.passes) {
    frame.description.scaler_losses.push_back(pass.name);
  }
  states_.assign(graph.passes.size(), states_[0]);
}

void LaneScalers::take_captured(LaneFrame& frame) {
  if (frame.context.loop == nullptr) return;
  const std::optional<CapturedScaler>& captured = frame.context.loop->scaler;
  Policy& policy = frame.description.policy;
  const bool is_file = parse_lane_name(frame.description.name).policy.ends_with(".toml");
  if (!captured || is_file || policy.loss_scale.kind != captured->spec.kind) return;
  policy.loss_scale = captured->spec;
  states_ = {captured->start};
  policy.notes.push_back(fmt::format(
      "the loss scaler starts as captured: scale {}, {} clean steps, growth_factor {}, "
      "backoff_factor {}, growth_interval {}",
      captured->start.scale, captured->start.growth_tracker, captured->spec.growth_factor,
      captured->spec.backoff_factor, captured->spec.growth_interval));
}

bool LaneScalers::unscaling_changes(size_t scaler) const {
  const bool divides = scaler_.unscale == LossScaler::Unscale::kDivide;
  return (divides ? scale(scaler) : unscale_factor(states_[scaler].scale)) != 1;
}

void LaneScalers::unscale(size_t scaler, const Tensor& from, Tensor& to) const {
  frame_.typed([&]<typename T>(T) {
    const auto& kernels = frame_.kernels().of<T>();
    const T* x = from.as<T>().data();
    T* y = to.as<T>().data();
    if (scaler_.unscale == LossScaler::Unscale::kDivide) {
      kernels.divide(x, scale(scaler), y, from.size());
    } else {
      kernels.scale(x, unscale_factor(states_[scaler].scale), y, from.size());
    }
  });
}

bool LaneScalers::stays_finite(const Tensor& gradient, size_t scaler) const {
  if (scaler_.check != LossScaler::Check::kUnscaled) return all_finite(frame_.kernels(), gradient);
  Tensor unscaled(gradient.shape(), gradient.container());
  unscale(scaler, gradient, unscaled);
  return all_finite(frame_.kernels(), unscaled);
}

LossScaleState LaneScalers::next(size_t scaler, bool overflowed) const {
  return scaler_.update(frame_.policy().loss_scale, states_[scaler], overflowed);
}

bool LaneScalers::try_again(const FoundInf& found) {
  std::vector<LossScaleState> moved = states_;
  for (size_t i = 0; i < states_.size(); ++i) {
    if (any(found[i])) moved[i] = next(i, true);
    if (moved[i].raised) return false;
  }
  states_.swap(moved);
  return std::ranges::any_of(found, any);
}

bool LaneScalers::has_raised() const {
  return std::ranges::any_of(states_, [](const LossScaleState& state) { return state.raised; });
}

std::vector<bool> LaneScalers::skips(const FoundInf& found) const {
  std::vector<bool> skips(frame_.context.groups.size(), false);
  for (size_t group = 0; group < skips.size(); ++group) {
    for (const std::vector<bool>& of_loss : found) {
      const bool by_group = frame_.policy().loss_scale_use.skip_by_group;
      const bool bad = by_group ? of_loss[group] : any(of_loss);
      skips[group] = skips[group] || (bad && checks());
    }
  }
  return skips;
}

void LaneScalers::record(const FoundInf& found, const std::vector<bool>& skips,
                         LaneStep& record) const {
  record.scalers.clear();
  const bool skipped = any(skips);
  for (size_t i = 0; i < states_.size(); ++i) {
    ScalerRecord& scaler = record.scalers.emplace_back();
    scaler.scale = states_[i].scale;
    scaler.found_inf = any(found[i]);
    scaler.skipped = skipped;
    if (!scaler.found_inf) continue;
    const std::vector<bool> all(record.sites.size(), true);
    scaler.culprit_site = first_nonfinite_site(
        *frame_.context.sites, record.sites, is_per_loss() ? frame_.context.sites_of_pass[i] : all);
  }
  if (!frame_.policy().loss_scale_use.skip_by_group) return;
  for (size_t group = 0; group < skips.size(); ++group) {
    ScalerRecord of_group;
    // A group with gradients of several scales has no scale.
    of_group.scale = is_per_loss() ? 1 : states_[0].scale;
    of_group.skipped = skips[group];
    for (size_t i = 0; i < states_.size(); ++i) {
      if (!found[i][group] || of_group.found_inf) continue;
      of_group.found_inf = true;
      of_group.culprit_site = record.scalers[i].culprit_site;
    }
    record.scalers.push_back(of_group);
  }
}

void LaneScalers::end_step(LaneStep& record) {
  for (size_t i = 0; i < states_.size(); ++i) {
    ScalerRecord& scaler = record.scalers[i];
    states_[i] = next(i, scaler.found_inf && checks());
    scaler.growth_tracker = static_cast<int32_t>(states_[i].growth_tracker);
  }
  for (size_t i = states_.size(); i < record.scalers.size(); ++i) {
    record.scalers[i].growth_tracker = record.scalers[0].growth_tracker;
  }
}

}  // namespace lockstep
