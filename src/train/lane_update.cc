// The end of a lane's step: buffers, loss scaler, optimizer, and what is recorded of them.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>
#include <type_traits>

#include "src/train/all_reduce.h"
#include "src/train/clip.h"
#include "src/train/lane.h"

namespace lockstep {
namespace {

// Exponent field all ones: infinity or NaN. Integer compares vectorize, std::isfinite may not.
bool all_finite(const Tensor& tensor) {
  bool finite = true;
  if (tensor.container() == Container::kF64) {
    constexpr uint64_t kExponent = 0x7FF0'0000'0000'0000;
    for (const double x : tensor.as<double>()) {
      finite &= (std::bit_cast<uint64_t>(x) & kExponent) != kExponent;
    }
  } else {
    constexpr uint32_t kExponent = 0x7F80'0000;
    for (const float x : tensor.as<float>()) {
      finite &= (std::bit_cast<uint32_t>(x) & kExponent) != kExponent;
    }
  }
  return finite;
}

double first_value(const Tensor& tensor) {
  return tensor.container() == Container::kF64 ? tensor.as<double>()[0] : tensor.as<float>()[0];
}

int32_t first_nonfinite_site(const SiteTable& sites, const std::vector<SiteRecord>& records) {
  for (size_t i = 0; i < records.size(); ++i) {
    if (!records[i].measured) continue;
    if (records[i].stats.nonfinite_seen(sites.sites[i].stat_exempt)) return static_cast<int32_t>(i);
  }
  return -1;
}

}  // namespace

// Skipped steps included: the forward pass has happened. Values have their buffer's format already.
void Lane::take_mutations(std::map<std::string, Tensor>& buffers) {
  for (const Mutation& mutation : context_.step_graph->mutations) {
    const Tensor& value = executor_.value(mutation.value);
    Tensor& buffer = buffers.at(mutation.buffer);
    if (buffer.container() == Container::kI32) {
      std::ranges::copy(value.as<int32_t>(), buffer.as<int32_t>().begin());
      continue;
    }
    const QuantizeSpec spec =
        rounding_to(executor_.external_format("b:" + mutation.buffer), buffer_key(mutation.buffer));
    if (executor_.container() == Container::kF64) {
      quantize<double>(value.as<double>(), buffer.as<double>(), spec, nullptr);
    } else {
      quantize<float>(value.as<float>(), buffer.as<float>(), spec, nullptr);
    }
  }
}

// Gradients are used as the executor has them, unless several passes add up or clipping changes
// them first.
bool Lane::keeps_gradients() const {
  const RunOptions& options = *context_.options;
  return options.parts() > 1 || options.clip_norm > 0 || options.clip_value > 0;
}

const Tensor& Lane::gradient(const ParameterState& p) const {
  return keeps_gradients() ? p.sum : executor_.value(p.gradient);
}

// As torch's p.grad += g: a sum in the weight's format, which gradients have.
void Lane::add_gradient(const ParameterState& p, Tensor& total, bool first) {
  const Tensor& g = executor_.value(p.gradient);
  const auto add = [&]<typename T>(T) {
    T* sum = total.as<T>().data();
    if (first) {
      std::copy_n(g.as<T>().data(), g.size(), sum);
      return;
    }
    active_kernels().of<T>().add(sum, g.as<T>().data(), sum, g.size());
    quantize<T>(total.as<T>(), total.as<T>(), {p.format}, nullptr);
  };
  executor_.container() == Container::kF64 ? add(double()) : add(float());
}

void Lane::finish_micro_batch(int64_t micro_batch, LaneStep& record, int64_t worker) {
  const int64_t workers = context_.options->workers;
  const double count = static_cast<double>(context_.options->parts());
  if (worker == 0) {
    if (workers > 1) next_buffers_ = buffers_;
    take_mutations(workers > 1 ? next_buffers_ : buffers_);
  }
  if (workers > 1 && worker == workers - 1) {
    for (auto& [name, tensor] : buffers_) tensor = next_buffers_.at(name);
  }
  record.loss += first_value(executor_.value(context_.step_graph->loss)) / count;
  record.losses.resize(context_.losses.size());
  for (size_t i = 0; i < context_.losses.size(); ++i) {
    const std::string& value = context_.step_graph->outputs.at("loss/" + context_.losses[i]);
    record.losses[i] += first_value(executor_.value(value)) / count;
  }
  if (!keeps_gradients()) return;
  for (ParameterState& p : parameters_) {
    if (p.gradient.empty()) continue;
    Tensor& sum = workers > 1 ? p.of_workers[static_cast<size_t>(worker)] : p.sum;
    add_gradient(p, sum, micro_batch == 0);
  }
}

// A worker's share of the mean is g / W; values that are divided only behind the sum are W times as
// large. The reference, whose policy is the default one, divides before.
void Lane::enter_all_reduce(const Lane* reference, LaneStep& record) {
  const AllReduce& how = description_.policy.all_reduce;
  const int64_t workers = context_.options->workers;
  const double scale = this->scale() * (how.divides_before ? 1 : static_cast<double>(workers));
  for (ParameterState& p : parameters_) {
    if (p.gradient.empty()) continue;
    const ParameterState* ref = partner(reference, p);
    const Format& format = how.format == nullptr ? *p.format : *how.format;
    SiteRecord all;
    for (size_t k = 0; k < p.of_workers.size(); ++k) {
      TensorStats stats;
      lockstep::enter_all_reduce(how, format, workers, p.of_workers[k],
                                 context_.options->measure ? &stats : nullptr);
      if (!context_.options->measure) continue;
      all.merge(gradient_record(p.of_workers[k], stats, format,
                                ref == nullptr ? nullptr : &ref->of_workers[k], scale));
    }
    if (all.measured) record.sites[context_.updates.at(p.name).entering] = all;
  }
}

void Lane::all_reduce(const Lane* reference, LaneStep& record) {
  const AllReduce& how = description_.policy.all_reduce;
  for (ParameterState& p : parameters_) {
    if (p.gradient.empty()) continue;
    const ParameterState* ref = partner(reference, p);
    TensorStats stats;
    lockstep::all_reduce(how, how.format == nullptr ? *p.format : *how.format, *p.format,
                         p.of_workers, p.sum, context_.options->measure ? &stats : nullptr);
    if (!context_.options->measure) continue;
    record.sites[context_.updates.at(p.name).reduced] =
        gradient_record(p.sum, stats, *p.format, ref == nullptr ? nullptr : &ref->sum, scale());
  }
}

bool Lane::unscaling_changes() const {
  const bool divides = scaler_.unscale == LossScaler::Unscale::kDivide;
  return (divides ? scale() : unscale_factor(scales_[0].scale)) != 1;
}

template <typename T>
void Lane::unscale(const T* from, T* to, int64_t count) const {
  if (scaler_.unscale == LossScaler::Unscale::kDivide) {
    const T divisor = scale();
    for (int64_t i = 0; i < count; ++i) to[i] = from[i] / divisor;
  } else {
    const T factor = unscale_factor(scales_[0].scale);
    active_kernels().of<T>().scale(from, factor, to, count);
  }
}

// Groups that skip by themselves have optimizers of their own and are clipped by themselves: one's
// infinity must not scale the other's gradients to nothing. Returns the total norm that was
// clipped, NaN where none is formed.
double Lane::clip_gradients() {
  std::vector<size_t> groups(context_.groups.size());
  std::iota(groups.begin(), groups.end(), size_t{0});
  if (!description_.policy.loss_scale_use.skip_by_group) return clip(groups);
  double squares = 0;
  for (const size_t group : groups) {
    const double norm = clip({group});
    squares += norm * norm;
  }
  return std::sqrt(squares);
}

// Unscales and clips the groups' gradients in place, or the other way round where the policy makes
// that mistake.
double Lane::clip(const std::vector<size_t>& groups) {
  const RunOptions& options = *context_.options;
  const bool clips_scaled = description_.policy.loss_scale_use.clip_before_unscale ||
                            (context_.loop != nullptr && context_.loop->clips_scaled);
  std::vector<ClippedGradient> gradients;
  for (ParameterState& p : parameters_) {
    if (p.gradient.empty() || std::ranges::count(groups, p.group) == 0) continue;
    // Unscaled gradients go to what is updated: masters take them in their own format.
    const bool widened = !clips_scaled && !p.master.empty();
    gradients.push_back({&p.sum, widened ? description_.policy.master : p.format});
  }
  const auto unscale_all = [&] {
    if (!unscaling_changes()) return;
    for (const ClippedGradient& gradient : gradients) {
      const auto in_place = [&](auto values) {
        unscale(values.data(), values.data(), gradient.values->size());
      };
      executor_.container() == Container::kF64 ? in_place(gradient.values->as<double>())
                                               : in_place(gradient.values->as<float>());
    }
  };
  if (!clips_scaled) unscale_all();
  double norm = std::numeric_limits<double>::quiet_NaN();
  if (options.clip_norm > 0) norm = clip_by_norm(gradients, options.clip_norm);
  if (options.clip_value > 0) clip_by_value(gradients, options.clip_value);
  if (clips_scaled) unscale_all();
  return norm;
}

// Finite where the lane's scaler looks: as the gradient arrives, still scaled
// (GradScaler.unscale_), or behind the unscaling, which can overflow when the scale is below 1.
bool Lane::stays_finite(const Tensor& gradient) const {
  if (scaler_.check != LossScaler::Check::kUnscaled) return all_finite(gradient);
  Tensor unscaled(gradient.shape(), gradient.container());
  const auto fill = [&]<typename T>(T) {
    unscale(gradient.as<T>().data(), unscaled.as<T>().data(), gradient.size());
  };
  executor_.container() == Container::kF64 ? fill(double()) : fill(float());
  return all_finite(unscaled);
}

bool Lane::tries_again(int64_t attempts) {
  const LossScaleUse& use = description_.policy.loss_scale_use;
  if (!use.replay || attempts >= use.replay_limit || scales_[0].raised) return false;
  if (std::ranges::count(found_inf(), true) == 0) return false;
  const LossScaleState next = scaler_.update(description_.policy.loss_scale, scales_[0], true);
  if (next.raised) return false;  // finish_step comes to the same end, and records it
  scales_[0] = next;
  return true;
}

void Lane::take_buffers_back() {
  for (auto& [name, tensor] : buffers_) tensor = kept_buffers_.at(name);
  for (auto& [name, tensor] : scaling_.tensors()) tensor = kept_scaling_.at(name);
}

// By parameter group: whether a gradient has a value that is not finite.
std::vector<bool> Lane::found_inf() const {
  std::vector<bool> found(context_.groups.size(), false);
  for (const ParameterState& p : parameters_) {
    if (p.gradient.empty() || found[p.group]) continue;
    found[p.group] = !stays_finite(gradient(p));
  }
  return found;
}

bool Lane::weights_finite() const {
  for (const ParameterState& p : parameters_) {
    if (!all_finite(p.weight)) return false;
  }
  return true;
}

// died_at is the first step that is not run. The reference never stops: the others need it. Nor
// does a synced lane whose weights are lost: its next step starts from the reference's. A scaler
// that stops training does so in both modes.
void Lane::follow_death() {
  if (scales_[0].raised) {
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
  out.error = {};
  if (reference != nullptr) {
    active_kernels().of<T>().compare(values.as<T>().data(), reference->as<float>().data(),
                                     values.size(), 1, format, &out.error);
  } else {
    out.error.compared = stats.count - stats.exponent_histogram[kHistogramBins - 1];
    out.error.dot_ref = out.error.ref_sq = stats.sum_sq;
  }
}

SiteRecord Lane::gradient_record(const Tensor& values, const TensorStats& stats,
                                 const Format& format, const Tensor* reference,
                                 double scale) const {
  SiteRecord out;
  out.measured = true;
  out.scale = scale;
  out.stats = stats;
  if (reference == nullptr) {
    out.error = error_of_reference(stats);
  } else if (scale > 0 && std::isfinite(scale)) {  // else it has collapsed
    const auto compare = [&]<typename T>(T) {
      active_kernels().of<T>().compare(values.as<T>().data(), reference->as<float>().data(),
                                       values.size(), scale, format, &out.error);
    };
    executor_.container() == Container::kF64 ? compare(double()) : compare(float());
  }
  return out;
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
  const Kernels<T>& kernels = active_kernels().of<T>();
  const Policy& policy = description_.policy;
  const auto& sites = context_.updates.at(p.name);
  Tensor& weight = p.updated();
  const int32_t weight_site = p.master.empty() ? sites.weight : sites.master;
  const Format* weight_format = p.master.empty() ? p.format : policy.master;
  const Format* state_format = policy.state_of(p.format);
  const Format* update_format = policy.update_of(p.format);
  // What the optimizer's roundings did; unset where all is in the container's own format.
  std::optional<TensorStats> of_weight, of_update, of_states[kMaxOptimizerStates];
  UpdateStats update;
  if (skip) {
    p.update.fill_zero();
    update.count = static_cast<uint64_t>(weight.size());
    update.weight_sq = observe<T>(std::as_const(weight).as<T>(), *weight_format).sum_sq;
  } else {
    const Tensor* gradient = &this->gradient(p);
    if (unscaling_changes() && !keeps_gradients()) {
      if (unscaled_.size() < gradient->size())
        unscaled_ = Tensor(gradient->shape(), gradient->container());
      unscale(gradient->as<T>().data(), unscaled_.as<T>().data(), gradient->size());
      gradient = &unscaled_;
    }
    OptimizerArrays<T> call;
    call.count = weight.size();
    call.weight = weight.as<T>().data();
    call.grad = gradient->as<T>().data();
    call.state_count = static_cast<int>(p.states.size());
    for (size_t k = 0; k < p.states.size(); ++k) call.states[k] = p.states[k].as<T>().data();
    if (!p.compensation.empty()) call.compensation = p.compensation.as<T>().data();
    if (context_.options->measure) call.update = p.update.as<T>().data();
    call.step = optimizer_steps_[p.group] + 1;
    const QuantizeSpec rounding = update_rounding(weight_format, weight_site);
    call.formats = {policy.arithmetic_of(p.format), state_format, weight_format, rounding.rounding,
                    rounding.key};
    call.formats.steps = policy.optimizer_steps;
    const auto native = [](const Format* format) {
      return std::is_same_v<T, double> ? format->is_fp64() : format->is_fp32();
    };
    const bool native_steps = native(policy.arithmetic_of(p.format));
    const bool measure = context_.options->measure;
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
    optimizer_step(*group.optimizer, context_.numbers(p.group, step_), context_.lr(p.group, step_),
                   call, context_.options->measure ? &update : nullptr);
  }
  if (!context_.options->measure) {
    if (p.master.empty() || skip) return;
    kernels.quantize(p.master.as<T>().data(), p.weight.as<T>().data(), p.master.size(),
                     rounding_to(p.format, sites.weight), nullptr);
    return;
  }
  if (sites.update >= 0) record.updates[sites.update] = {true, update};

  // Without statistics of its rounding (skipped step, nothing rounded) a tensor is recorded as it
  // is.
  const auto record_values = [&](int32_t site, const Tensor& values,
                                 const std::optional<TensorStats>& stats, const Format& format,
                                 const Tensor* ref) {
    if (site < 0) return;
    record_site<T>(site, values, stats ? *stats : observe<T>(values.as<T>(), format), format, ref,
                   record);
  };
  record_values(sites.update, p.update, of_update, *update_format,
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

// 1. found_inf on scaled gradients   2. unscale, clip   3. update, or skip   4. the next scale
void Lane::finish_step(const Lane* reference, LaneStep& record) {
  record.lr.clear();
  for (size_t group = 0; group < context_.groups.size(); ++group) {
    record.lr.push_back(context_.lr(group, step_));
  }

  const bool by_group = description_.policy.loss_scale_use.skip_by_group;
  const std::vector<bool> found = found_inf();
  ScalerRecord scaler;
  scaler.scale = scales_[0].scale;
  scaler.found_inf = std::ranges::count(found, true) > 0;
  scaler.skipped = scaler.found_inf && scaler_.check != LossScaler::Check::kNone;
  std::vector<bool> skips(found.size(), scaler.skipped);
  if (by_group && scaler.skipped) skips = found;
  if (scaler.found_inf) scaler.culprit_site = first_nonfinite_site(*context_.sites, record.sites);
  if (keeps_gradients()) record.gradient_norm = clip_gradients();
  for (ParameterState& p : parameters_) {
    if (p.gradient.empty()) continue;
    if (executor_.container() == Container::kF64) {
      update_parameter<double>(p, skips[p.group], partner(reference, p), record);
    } else {
      update_parameter<float>(p, skips[p.group], partner(reference, p), record);
    }
  }
  for (size_t group = 0; group < skips.size(); ++group) optimizer_steps_[group] += !skips[group];
  scales_[0] = scaler_.update(description_.policy.loss_scale, scales_[0], scaler.skipped);
  scaler.growth_tracker = static_cast<int32_t>(scales_[0].growth_tracker);
  record.scalers = {scaler};
  for (size_t group = 0; by_group && group < skips.size(); ++group) {
    ScalerRecord& of_group = record.scalers.emplace_back(scaler);
    of_group.found_inf = found[group];
    of_group.skipped = skips[group];
    if (!found[group]) of_group.culprit_site = -1;
  }
  follow_death();
}

}  // namespace lockstep
