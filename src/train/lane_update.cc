// The end of a lane's step: loss scaler, optimizer, and what is recorded of them.
#include <algorithm>
#include <cmath>
#include <optional>
#include <type_traits>

#include "emulation/kernels/quantize.h"
#include "src/execute/finite.h"
#include "src/train/lane.h"

namespace lockstep {
namespace {

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

// Only the scalers that overflowed move: the others have not counted the batch yet.
bool Lane::tries_again(int64_t attempts) {
  const LossScaleUse& use = description_.policy.loss_scale_use;
  const auto raised = [](const LossScaleState& state) { return state.raised; };
  if (!use.replay || attempts >= use.replay_limit || std::ranges::any_of(scales_, raised)) {
    return false;
  }
  const std::vector<std::vector<bool>> found = found_inf();
  std::vector<LossScaleState> next = scales_;
  bool moved = false;
  for (size_t i = 0; i < scales_.size(); ++i) {
    if (std::ranges::count(found[i], true) == 0) continue;
    next[i] = scaler_.update(description_.policy.loss_scale, scales_[i], true);
    if (next[i].raised) return false;  // finish_step raises it again, and records it
    moved = true;
  }
  scales_ = std::move(next);
  return moved;
}

bool Lane::weights_finite() const {
  for (const ParameterState& p : parameters_) {
    if (!all_finite(kernels(), p.weight)) return false;
  }
  return true;
}

bool Lane::update_may_overflow() const {
  const Policy& policy = description_.policy;
  const int emax = find_format("fp32").emax;
  return std::ranges::any_of(parameters_, [&](const ParameterState& p) {
    if (!p.trains) return false;
    const Format* formats[] = {p.format, policy.arithmetic_of(p.format), policy.state_of(p.format),
                               policy.update_of(p.format)};
    return std::ranges::any_of(formats, [&](const Format* f) { return f->emax < emax; });
  });
}

// died_at is the first step that is not run. The reference never stops: the others need it. A
// synced lane whose weights are lost does not stop either: its next step starts from the
// reference's. A scaler that stops training stops the lane in both modes.
void Lane::follow_death() {
  const auto raised = [](const LossScaleState& state) { return state.raised; };
  if (std::ranges::any_of(scales_, raised)) {
    died_at_ = step_ + 1;
    died_of_ = DeathCause::kLossScaler;
    return;
  }
  if (description_.is_reference || context_.options->mode == LaneMode::kSynced) return;
  if (weights_finite()) {
    nonfinite_since_ = -1;
    return;
  }
  if (nonfinite_since_ < 0) nonfinite_since_ = step_;
  if (step_ - nonfinite_since_ < kStepsAfterNonfinite) return;
  died_at_ = step_ + 1;
  died_of_ = DeathCause::kWeights;
}

template <typename T>
void Lane::record_site(int32_t site, const Tensor& values, const TensorStats& stats,
                       const Format& format, const Tensor* reference, LaneStep& record) const {
  if (site < 0) return;
  SiteRecord& out = record.sites[site];
  out.measured = true;
  out.scale = 1;
  out.stats = stats;
  if (tap_ != nullptr) tap_->take({&site, 1}, values, format);
  out.error = {};
  if (reference != nullptr) {
    out.error = compare<T>(kernels(), values.as<T>(), reference->as<float>(), 1, format);
  } else {
    out.error.compared = stats.count - stats.exponent_histogram[kHistogramBins - 1];
    out.error.dot_ref = out.error.ref_sq = stats.sum_sq;
  }
}

QuantizeSpec Lane::update_rounding(const Format* format, int32_t site) const {
  QuantizeSpec spec = rounding_to(format, site);
  switch (description_.policy.update_rounding) {
    case UpdateRounding::kStorage:
      break;
    case UpdateRounding::kStochastic:
      spec.rounding = Rounding::kStochastic;
      break;
    case UpdateRounding::kNearestEven:
    case UpdateRounding::kKahan:
      spec.rounding = Rounding::kNearestEven;
      break;
  }
  return spec;
}

template <typename T>
void Lane::update_parameter(ParameterState& p, bool skip, const ParameterState* reference,
                            LaneStep& record) {
  const Kernels<T>& kernels = this->kernels().of<T>();
  const Policy& policy = description_.policy;
  const auto& sites = context_.updates.at(p.name);
  Tensor& weight = p.updated();
  const int32_t weight_site = p.master.empty() ? sites.weight : sites.master;
  const Format* weight_format = p.master.empty() ? p.format : policy.master;
  const Format* state_format = policy.state_of(p.format);
  const Format* update_format = policy.update_of(p.format);
  // Statistics of the optimizer's roundings; unset if all formats are the container's own.
  std::optional<TensorStats> of_weight, of_update, of_states[kMaxOptimizerStates];
  UpdateStats update;
  // The reference keeps its own: the others are compared with it.
  Tensor& dw = description_.is_reference ? p.update : updates_[weight.shape()];
  if (measures() && dw.empty()) dw = Tensor(weight.shape(), weight.container());
  if (skip) {
    dw.fill_zero();
    update.count = static_cast<uint64_t>(weight.size());
    update.weight_sq =
        observe<T>(this->kernels(), std::as_const(weight).as<T>(), *weight_format).sum_sq;
  } else {
    const Tensor* gradient = &this->gradient(p);
    if (!keeps_gradients() && unscaling_changes(0)) {
      if (unscaled_.size() < gradient->size())
        unscaled_ = Tensor(gradient->shape(), gradient->container());
      T* unscaled = unscaled_.as<T>().data();
      unscale(0, gradient->as<T>().data(), unscaled, gradient->size());
      kernels.quantize(unscaled, unscaled, gradient->size(), {unscaled_format(p)}, nullptr);
      gradient = &unscaled_;
    }
    OptimizerArrays<T> call = arrays_of<T>(p, *gradient, optimizer_steps_[p.group] - p.missed + 1);
    if (measures()) call.update = dw.as<T>().data();
    const QuantizeSpec rounding = update_rounding(weight_format, weight_site);
    call.formats = {policy.arithmetic_of(p.format), state_format, weight_format, rounding.rounding,
                    rounding.key};
    call.formats.steps = policy.optimizer_steps;
    const auto native = [](const Format* format) {
      return std::is_same_v<T, double> ? format->is_fp64() : format->is_fp32();
    };
    const bool native_steps = native(policy.arithmetic_of(p.format));
    const bool measure = measures();
    if (measure && !native(weight_format)) call.measured.weight = &of_weight.emplace();
    if (measure && !native(update_format)) call.measured.update = &of_update.emplace();
    for (size_t k = 0; k < p.states.size(); ++k) {
      const QuantizeSpec to_state = rounding_to(state_format, sites.states[k]);
      call.formats.state_rounding = to_state.rounding;
      call.formats.state_keys[k] = to_state.key;
      if (measure && (!native_steps || !native(state_format))) {
        call.measured.states[k] = &of_states[k].emplace();
      }
    }
    const OptimizerGroup& group = context_.groups[p.group];
    optimizer_step(this->kernels(), *group.optimizer, context_.numbers(p.group, step_),
                   context_.lr(p.group, step_), call, measures() ? &update : nullptr);
  }
  if (!measures()) {
    if (p.master.empty() || skip) return;
    kernels.quantize(p.master.as<T>().data(), p.weight.as<T>().data(), p.master.size(),
                     rounding_to(p.format, sites.weight), nullptr);
    return;
  }
  if (sites.update >= 0) record.sites[sites.update].update = {true, update};

  // A tensor without statistics of its rounding (skipped step, nothing rounded) is measured as
  // it is stored.
  const auto record_values = [&](int32_t site, const Tensor& values,
                                 const std::optional<TensorStats>& stats, const Format& format,
                                 const Tensor* ref) {
    if (site < 0) return;
    record_site<T>(site, values,
                   stats ? *stats : observe<T>(this->kernels(), values.as<T>(), format), format,
                   ref, record);
  };
  record_values(sites.update, dw, of_update, *update_format,
                reference ? &reference->update : nullptr);
  for (size_t k = 0; k < p.states.size(); ++k) {
    record_values(sites.states[k], p.states[k], of_states[k], *state_format,
                  reference ? &reference->states[k] : nullptr);
  }
  const Tensor* reference_weight = reference ? &reference->updated() : nullptr;
  record_values(weight_site, weight, of_weight, *weight_format, reference_weight);
  if (p.master.empty()) return;
  if (skip) return record_values(sites.weight, p.weight, {}, *p.format, reference_weight);
  TensorStats stats;
  kernels.quantize(p.master.as<T>().data(), p.weight.as<T>().data(), p.master.size(),
                   rounding_to(p.format, sites.weight), &stats);
  record_site<T>(sites.weight, p.weight, stats, *p.format, reference_weight, record);
}

// A column per scaler, before its update, from its own loss's gradients. `skips` by group.
void Lane::record_scalers(const std::vector<std::vector<bool>>& found,
                          const std::vector<bool>& skips, LaneStep& record) const {
  record.scalers.clear();
  const bool skipped = std::ranges::count(skips, true) > 0;
  for (size_t i = 0; i < scales_.size(); ++i) {
    ScalerRecord& scaler = record.scalers.emplace_back();
    scaler.scale = scales_[i].scale;
    scaler.found_inf = std::ranges::count(found[i], true) > 0;
    scaler.skipped = skipped;
    if (!scaler.found_inf) continue;
    const std::vector<bool> all(record.sites.size(), true);
    scaler.culprit_site = first_nonfinite_site(
        *context_.sites, record.sites, separates_losses() ? context_.sites_of_pass[i] : all);
  }
  if (!description_.policy.loss_scale_use.skip_by_group) return;
  for (size_t group = 0; group < skips.size(); ++group) {
    ScalerRecord of_group;
    // A group with gradients of several scales has no scale.
    of_group.scale = separates_losses() ? 1 : scales_[0].scale;
    of_group.skipped = skips[group];
    for (size_t i = 0; i < scales_.size(); ++i) {
      if (!found[i][group] || of_group.found_inf) continue;
      of_group.found_inf = true;
      of_group.culprit_site = record.scalers[i].culprit_site;
    }
    record.scalers.push_back(of_group);
  }
}

// 1. what was stored before the step   2. found_inf on scaled gradients   3. unscale, clip
// 4. update, or skip   5. the next scales
// An overflow of any loss skips the step; each scaler moves by those of its own.
void Lane::finish_step(const Lane* reference, LaneStep& record) {
  record_stored(record);
  for (const auto& runner : runners_) record.device.merge(runner->executor().take_device_work());
  record.lr.clear();
  for (size_t group = 0; group < context_.groups.size(); ++group) {
    record.lr.push_back(context_.lr(group, step_));
  }

  const LossScaleUse& use = description_.policy.loss_scale_use;
  const bool checks = scaler_.check != LossScaler::Check::kNone;
  const std::vector<std::vector<bool>> found = found_inf();
  std::vector<bool> skips(context_.groups.size(), false);
  for (size_t group = 0; group < skips.size(); ++group) {
    for (const std::vector<bool>& of_loss : found) {
      const bool bad = use.skip_by_group ? of_loss[group] : std::ranges::count(of_loss, true) > 0;
      skips[group] = skips[group] || (bad && checks);
    }
  }
  record_scalers(found, skips, record);
  if (separates_losses()) add_up_losses();
  if (keeps_gradients()) record.gradient_norm = clip_gradients();
  if (context_.loop != nullptr && context_.options->measuring.on) {
    record.gradient_norms = gradient_norms();
  }
  for (ParameterState& p : parameters_) {
    if (!p.trains) continue;
    if (!p.has_gradient) {  // PyTorch's optimizers pass over it: no decay, no step counted
      p.missed += !skips[p.group];
      continue;
    }
    if (container() == Container::kF64) {
      update_parameter<double>(p, skips[p.group], partner(reference, p), record);
    } else {
      update_parameter<float>(p, skips[p.group], partner(reference, p), record);
    }
  }
  for (size_t group = 0; group < skips.size(); ++group) optimizer_steps_[group] += !skips[group];
  for (size_t i = 0; i < scales_.size(); ++i) {
    ScalerRecord& scaler = record.scalers[i];
    const bool overflowed = scaler.found_inf && checks;
    scales_[i] = scaler_.update(description_.policy.loss_scale, scales_[i], overflowed);
    scaler.growth_tracker = static_cast<int32_t>(scales_[i].growth_tracker);
  }
  for (size_t i = scales_.size(); i < record.scalers.size(); ++i) {
    record.scalers[i].growth_tracker = record.scalers[0].growth_tracker;
  }
  follow_death();
}

}  // namespace lockstep
