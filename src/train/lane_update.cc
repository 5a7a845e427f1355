// The end of a lane's step: buffers, loss scaler, optimizer, and what is recorded of them.
#include <bit>
#include <cmath>
#include <optional>
#include <type_traits>

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

int32_t first_nonfinite_site(const std::vector<SiteRecord>& records) {
  for (size_t i = 0; i < records.size(); ++i) {
    if (records[i].measured && records[i].stats.nonfinite_seen()) return static_cast<int32_t>(i);
  }
  return -1;
}

}  // namespace

// Skipped steps included: the forward pass has happened. Values have their buffer's format already.
void Lane::take_mutations() {
  for (const Mutation& mutation : context_.step_graph->mutations) {
    const Tensor& value = executor_.value(mutation.value);
    Tensor& buffer = buffers_.at(mutation.buffer);
    const QuantizeSpec spec =
        rounding_to(executor_.external_format("b:" + mutation.buffer), buffer_key(mutation.buffer));
    if (executor_.container() == Container::kF64) {
      quantize<double>(value.as<double>(), buffer.as<double>(), spec, nullptr);
    } else {
      quantize<float>(value.as<float>(), buffer.as<float>(), spec, nullptr);
    }
  }
}

// As GradScaler.unscale_ does, the gradients are judged as they arrive, still scaled.
bool Lane::found_inf() const {
  for (const ParameterState& p : parameters_) {
    if (!p.gradient.empty() && !all_finite(executor_.value(p.gradient))) return true;
  }
  return false;
}

bool Lane::weights_finite() const {
  for (const ParameterState& p : parameters_) {
    if (!all_finite(p.weight)) return false;
  }
  return true;
}

// died_at is the first step that is not run. The reference never stops: the others need it. Nor
// does a synced lane: its next step starts from the reference's weights.
void Lane::follow_death() {
  if (description_.is_reference || context_.mode == LaneMode::kSynced) return;
  if (weights_finite()) {
    nonfinite_since_ = -1;
    return;
  }
  if (nonfinite_since_ < 0) nonfinite_since_ = step_;
  if (step_ - nonfinite_since_ >= kStepsAfterNonfinite) died_at_ = step_ + 1;
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

template <typename T>
void Lane::update_parameter(ParameterState& p, bool skip, const ParameterState* reference,
                            LaneStep& record) {
  const Kernels<T>& kernels = active_kernels().of<T>();
  const Policy& policy = description_.policy;
  const auto& sites = context_.update_sites.at(p.name);
  Tensor& weight = p.updated();
  const int32_t weight_site = p.master.empty() ? sites.weight : sites.master;
  const Format* weight_format = p.master.empty() ? p.format : &find_format("fp32");
  // What the optimizer's roundings did; unset where all is in the container's own format.
  std::optional<TensorStats> of_weight, of_update, of_states[kMaxOptimizerStates];
  UpdateStats update;
  if (skip) {
    p.update.fill_zero();
    update.count = static_cast<uint64_t>(weight.size());
    update.weight_sq = observe<T>(std::as_const(weight).as<T>(), *weight_format).sum_sq;
  } else {
    const Tensor* gradient = &executor_.value(p.gradient);
    if (const float inverse = unscale_factor(scale_.scale); inverse != 1) {
      if (unscaled_.size() < gradient->size())
        unscaled_ = Tensor(gradient->shape(), gradient->container());
      kernels.scale(gradient->as<T>().data(), static_cast<T>(inverse), unscaled_.as<T>().data(),
                    gradient->size());
      gradient = &unscaled_;
    }
    OptimizerCall<T> call;
    call.count = weight.size();
    call.weight = weight.as<T>().data();
    call.grad = gradient->as<T>().data();
    for (size_t k = 0; k < p.states.size(); ++k) call.states[k] = p.states[k].as<T>().data();
    call.update = p.update.as<T>().data();
    call.step = optimizer_step_ + 1;
    const QuantizeSpec rounding = rounding_to(weight_format, weight_site);
    call.formats = {policy.optimizer_arithmetic, policy.optimizer_state, weight_format,
                    rounding.rounding, rounding.key};
    const auto native = [](const Format* format) {
      return std::is_same_v<T, double> ? format->is_fp64() : format->is_fp32();
    };
    const bool native_steps = native(policy.optimizer_arithmetic);
    if (!native(weight_format)) call.measured.weight = &of_weight.emplace();
    if (!native_steps) call.measured.update = &of_update.emplace();
    for (size_t k = 0; k < p.states.size(); ++k) {
      const QuantizeSpec to_state = rounding_to(policy.optimizer_state, sites.states[k]);
      call.formats.state_rounding = to_state.rounding;
      call.formats.state_keys[k] = to_state.key;
      if (!native_steps || !native(policy.optimizer_state)) {
        call.measured.states[k] = &of_states[k].emplace();
      }
    }
    optimizer_step(*context_.optimizer, kernels, context_.spec, call, &update);
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
  record_values(sites.update, p.update, of_update, *policy.optimizer_arithmetic,
                reference ? &reference->update : nullptr);
  for (size_t k = 0; k < p.states.size(); ++k) {
    record_values(sites.states[k], p.states[k], of_states[k], *policy.optimizer_state,
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

// 1. buffers   2. found_inf on scaled gradients   3. unscale and update, or skip   4. the next
// scale
void Lane::finish_step(const Lane* reference, LaneStep& record) {
  take_mutations();
  record.loss = first_value(executor_.value(context_.step_graph->loss));

  ScalerRecord scaler;
  scaler.scale = scale_.scale;
  scaler.found_inf = found_inf();
  scaler.skipped = scaler.found_inf && scaler_.checks_finite;
  if (scaler.found_inf) scaler.culprit_site = first_nonfinite_site(record.sites);
  for (ParameterState& p : parameters_) {
    if (p.gradient.empty()) continue;
    if (executor_.container() == Container::kF64) {
      update_parameter<double>(p, scaler.skipped, partner(reference, p), record);
    } else {
      update_parameter<float>(p, scaler.skipped, partner(reference, p), record);
    }
  }
  if (!scaler.skipped) ++optimizer_step_;
  scale_ = scaler_.update(description_.policy.loss_scale, scale_, scaler.skipped);
  scaler.growth_tracker = scale_.growth_tracker;
  record.scalers = {scaler};
  follow_death();
}

}  // namespace lockstep
