// The end of a lane's step: buffers, loss scaler, optimizer, and what is recorded of them.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <optional>
#include <type_traits>

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

// Gradients are used as the executor has them, unless several micro-batches add up or clipping
// changes them first.
bool Lane::keeps_gradients() const {
  const RunOptions& options = *context_.options;
  return options.accumulate > 1 || options.clip_norm > 0 || options.clip_value > 0;
}

const Tensor& Lane::gradient(const ParameterState& p) const {
  return keeps_gradients() ? p.sum : executor_.value(p.gradient);
}

// As torch's p.grad += g: a sum in the weight's format, which gradients have.
void Lane::add_gradient(ParameterState& p, bool first) {
  const Tensor& g = executor_.value(p.gradient);
  const auto add = [&]<typename T>(T) {
    T* sum = p.sum.as<T>().data();
    if (first) {
      std::copy_n(g.as<T>().data(), g.size(), sum);
      return;
    }
    active_kernels().of<T>().add(sum, g.as<T>().data(), sum, g.size());
    quantize<T>(p.sum.as<T>(), p.sum.as<T>(), {p.format}, nullptr);
  };
  executor_.container() == Container::kF64 ? add(double()) : add(float());
}

void Lane::finish_micro_batch(int64_t micro_batch, LaneStep& record) {
  const double count = static_cast<double>(context_.options->accumulate);
  take_mutations();
  record.loss += first_value(executor_.value(context_.step_graph->loss)) / count;
  record.losses.resize(context_.losses.size());
  for (size_t i = 0; i < context_.losses.size(); ++i) {
    const std::string& value = context_.step_graph->outputs.at("loss/" + context_.losses[i]);
    record.losses[i] += first_value(executor_.value(value)) / count;
  }
  if (!keeps_gradients()) return;
  for (ParameterState& p : parameters_) {
    if (!p.gradient.empty()) add_gradient(p, micro_batch == 0);
  }
}

// Unscales and clips the gradients in place. Returns the total norm, NaN where none is formed.
double Lane::clip_gradients() {
  const RunOptions& options = *context_.options;
  const float inverse = unscale_factor(scale_.scale);
  std::vector<ClippedGradient> gradients;
  for (ParameterState& p : parameters_) {
    if (p.gradient.empty()) continue;
    // Unscaled gradients go to what is updated: masters take them in their own format.
    gradients.push_back({&p.sum, p.master.empty() ? p.format : description_.policy.master});
    const auto unscale = [&]<typename T>(T factor) {
      T* g = p.sum.as<T>().data();
      active_kernels().of<T>().scale(g, factor, g, p.sum.size());
    };
    if (inverse == 1) continue;
    executor_.container() == Container::kF64 ? unscale(static_cast<double>(inverse))
                                             : unscale(inverse);
  }
  double norm = std::numeric_limits<double>::quiet_NaN();
  if (options.clip_norm > 0) norm = clip_by_norm(gradients, options.clip_norm);
  if (options.clip_value > 0) clip_by_value(gradients, options.clip_value);
  return norm;
}

// As GradScaler.unscale_ does, the gradients are judged as they arrive, still scaled.
bool Lane::found_inf() const {
  for (const ParameterState& p : parameters_) {
    if (!p.gradient.empty() && !all_finite(gradient(p))) return true;
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
  if (description_.is_reference || context_.options->mode == LaneMode::kSynced) return;
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
  // What the optimizer's roundings did; unset where all is in the container's own format.
  std::optional<TensorStats> of_weight, of_update, of_states[kMaxOptimizerStates];
  UpdateStats update;
  if (skip) {
    p.update.fill_zero();
    update.count = static_cast<uint64_t>(weight.size());
    update.weight_sq = observe<T>(std::as_const(weight).as<T>(), *weight_format).sum_sq;
  } else {
    const Tensor* gradient = &this->gradient(p);
    const float inverse = unscale_factor(scale_.scale);
    if (inverse != 1 && !keeps_gradients()) {
      if (unscaled_.size() < gradient->size())
        unscaled_ = Tensor(gradient->shape(), gradient->container());
      kernels.scale(gradient->as<T>().data(), static_cast<T>(inverse), unscaled_.as<T>().data(),
                    gradient->size());
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
    call.step = optimizer_step_ + 1;
    const QuantizeSpec rounding = update_rounding(weight_format, weight_site);
    call.formats = {policy.optimizer_arithmetic, policy.optimizer_state, weight_format,
                    rounding.rounding, rounding.key};
    const auto native = [](const Format* format) {
      return std::is_same_v<T, double> ? format->is_fp64() : format->is_fp32();
    };
    const bool native_steps = native(policy.optimizer_arithmetic);
    const bool measure = context_.options->measure;
    if (measure && !native(weight_format)) call.measured.weight = &of_weight.emplace();
    if (measure && !native_steps) call.measured.update = &of_update.emplace();
    for (size_t k = 0; k < p.states.size(); ++k) {
      const QuantizeSpec to_state = rounding_to(policy.optimizer_state, sites.states[k]);
      call.formats.state_rounding = to_state.rounding;
      call.formats.state_keys[k] = to_state.key;
      if (measure && (!native_steps || !native(policy.optimizer_state))) {
        call.measured.states[k] = &of_states[k].emplace();
      }
    }
    const OptimizerGroup& group = context_.groups[p.group];
    optimizer_step(*group.optimizer, group.numbers, context_.lr(p.group, step_), call,
                   context_.options->measure ? &update : nullptr);
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

// 1. found_inf on scaled gradients   2. unscale, clip   3. update, or skip   4. the next scale
void Lane::finish_step(const Lane* reference, LaneStep& record) {
  record.lr.clear();
  for (size_t group = 0; group < context_.groups.size(); ++group) {
    record.lr.push_back(context_.lr(group, step_));
  }

  ScalerRecord scaler;
  scaler.scale = scale_.scale;
  scaler.found_inf = found_inf();
  scaler.skipped = scaler.found_inf && scaler_.checks_finite;
  if (scaler.found_inf) scaler.culprit_site = first_nonfinite_site(record.sites);
  if (keeps_gradients()) record.gradient_norm = clip_gradients();
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
