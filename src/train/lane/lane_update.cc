// See lane_update.h.
#include "src/train/lane/lane_update.h"

#include <algorithm>
#include <set>
#include <type_traits>

#include "emulation/kernels/quantize.h"

namespace lockstep {
namespace {

template <typename T>
bool is_kept_as(const Format* format) {
  return std::is_same_v<T, double> ? format->is_fp64() : format->is_fp32();
}

}  // namespace

LaneUpdate::LaneUpdate(const LaneFrame& frame, LaneStorage& storage, LaneGradients& gradients)
    : frame_(frame), storage_(storage), gradients_(gradients) {}

// Where nothing is measured nobody reads an update.
void LaneUpdate::start() {
  if (!frame_.description.is_reference) return;
  const bool is_read = frame_.options().measuring.on;
  for (const LaneParameter& p : storage_.parameters()) {
    const bool is_kept = p.trains && is_read;
    kept_.push_back(is_kept ? Tensor(p.weight.shape(), p.weight.container()) : Tensor());
  }
}

void LaneUpdate::run(const std::vector<bool>& skips, const LaneUpdate* reference,
                     LaneStep& record) {
  std::vector<LaneParameter>& parameters = storage_.parameters();
  for (size_t i = 0; i < parameters.size(); ++i) {
    LaneParameter& p = parameters[i];
    const RecordedUpdate* recorded = frame_.context.recorded(p.name, frame_.step);
    bool skip = skips[p.sites->group];
    if (!p.trains) {
      if (recorded != nullptr) {
        frame_.typed([&]<typename T>(T) { add_recorded<T>(p, *recorded); });
      }
      continue;
    }
    if (frame_.context.groups[p.sites->group].optimizer == &recorded_updates()) {
      skip = skip || recorded == nullptr;  // whichever gradients the lane has
    } else if (!gradients_.has(
                   i)) {  // PyTorch's optimizers pass over it: no decay, no step counted
      p.missed += !skip;
      continue;
    }
    frame_.typed([&]<typename T>(T) { update<T>(i, skip, reference, record); });
  }
  for (size_t group = 0; group < skips.size(); ++group) {
    storage_.optimizer_steps()[group] += !skips[group];
  }
}

bool LaneUpdate::may_overflow() const {
  const Policy& policy = frame_.policy();
  const int emax = find_format("fp32").emax;
  return std::ranges::any_of(storage_.parameters(), [&](const LaneParameter& p) {
    if (!p.trains) return false;
    const Format* formats[] = {p.format, policy.arithmetic_of(p.format), policy.state_of(p.format),
                               policy.update_of(p.format)};
    return std::ranges::any_of(formats, [&](const Format* f) { return f->emax < emax; });
  });
}

int64_t LaneUpdate::bytes() const {
  if (!frame_.options().measuring.on) return 0;
  const auto& all = frame_.context.step_graph->parameters;
  std::set<Shape> shapes;  // of scratch_
  int64_t numbers = 0;
  for (size_t i = 0; i < all.size(); ++i) {
    const Shape& shape = all[i].type.shape;
    const bool is_own = frame_.description.is_reference || shapes.insert(shape).second;
    if (storage_.parameters()[i].trains && is_own) numbers += element_count(shape);
  }
  return numbers * static_cast<int64_t>(bytes_of(frame_.container()));
}

// The reference keeps its own: the others are compared with it.
Tensor& LaneUpdate::update_of(size_t i) {
  const Tensor& weight = storage_.parameters()[i].weight;
  Tensor& dw = kept_.empty() ? scratch_[weight.shape()] : kept_[i];
  if (frame_.measures() && dw.empty()) dw = Tensor(weight.shape(), weight.container());
  return dw;
}

const Format* LaneUpdate::updated_format(const LaneParameter& p) const {
  return p.master.empty() ? p.format : frame_.policy().master;
}

QuantizeSpec LaneUpdate::update_rounding(const Format* format, int32_t site) const {
  QuantizeSpec spec = frame_.rounding_to(format, site);
  switch (frame_.policy().update_rounding) {
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
void LaneUpdate::round_master(LaneParameter& p, TensorStats* stats) const {
  frame_.kernels().of<T>().quantize(p.master.as<T>().data(), p.weight.as<T>().data(),
                                    p.master.size(), frame_.rounding_to(p.format, p.sites->weight),
                                    stats);
}

template <typename T>
void LaneUpdate::update(size_t i, bool skip, const LaneUpdate* reference, LaneStep& record) {
  LaneParameter& p = storage_.parameters()[i];
  Tensor& dw = update_of(i);
  Roundings measured;
  if (skip) {
    skip_step<T>(p, dw, measured);
  } else {
    take_step<T>(i, dw, measured);
  }
  if (frame_.measures()) {
    record_update<T>(i, skip, dw, measured, reference, record);
  } else if (!p.master.empty() && !skip) {
    round_master<T>(p, nullptr);
  }
}

template <typename T>
void LaneUpdate::skip_step(const LaneParameter& p, Tensor& dw, Roundings& out) const {
  dw.fill_zero();
  const Tensor& weight = p.updated();
  out.changes.count = static_cast<uint64_t>(weight.size());
  out.changes.weight_sq = observe<T>(frame_.kernels(), weight.as<T>(), *updated_format(p)).sum_sq;
}

template <typename T>
void LaneUpdate::take_step(size_t i, Tensor& dw, Roundings& out) {
  LaneParameter& p = storage_.parameters()[i];
  const Policy& policy = frame_.policy();
  const size_t group = p.sites->group;
  const bool measure = frame_.measures();
  const Format *arithmetic = policy.arithmetic_of(p.format), *state = policy.state_of(p.format);
  const QuantizeSpec to_weight =
      update_rounding(updated_format(p), p.master.empty() ? p.sites->weight : p.sites->master);
  const RecordedUpdate* recorded = frame_.context.recorded(p.name, frame_.step);
  const bool converts = recorded != nullptr && p.weight.container() == Container::kF64;
  const Tensor wide = converts ? recorded->change.to(Container::kF64) : Tensor();
  const Tensor& gradient = converts              ? wide
                           : recorded != nullptr ? recorded->change
                                                 : gradients_.for_optimizer(i);
  OptimizerArrays<T> call =
      arrays_of<T>(p, gradient, storage_.optimizer_steps()[group] - p.missed + 1);
  call.formats = {arithmetic, state, to_weight.format, to_weight.rounding, to_weight.key};
  call.formats.steps = policy.optimizer_steps;
  if (measure) {
    call.update = dw.as<T>().data();
    if (!is_kept_as<T>(to_weight.format)) call.measured.weight = &out.weight.emplace();
    if (!is_kept_as<T>(policy.update_of(p.format))) call.measured.update = &out.update.emplace();
  }
  // Narrower formats hold no such difference, and Kahan's sum keeps what it loses.
  const bool follows =
      recorded != nullptr && is_kept_as<T>(to_weight.format) && p.compensation.empty();
  const auto exact =
      follows ? recorded->to_be_set(p.updated()) : std::vector<RecordedUpdate::Element>();
  const bool native_states = is_kept_as<T>(arithmetic) && is_kept_as<T>(state);
  for (size_t k = 0; k < p.states.size(); ++k) {
    const QuantizeSpec to_state = frame_.rounding_to(state, p.sites->states[k]);
    call.formats.state_rounding = to_state.rounding;
    call.formats.state_keys[k] = to_state.key;
    if (measure && !native_states) call.measured.states[k] = &out.states[k].emplace();
  }
  optimizer_step(frame_.kernels(), *frame_.context.groups[group].optimizer,
                 frame_.context.numbers(group, frame_.step), frame_.context.lr(group, frame_.step),
                 call, measure ? &out.changes : nullptr);
  for (size_t k = 0; k < p.states.size(); ++k) {
    if (storage_.codes_of(p, k) == nullptr) continue;
    storage_.encode_state(p, k, measure ? &out.states[k].emplace() : nullptr);
  }
  set_elements(exact, p.updated());
}

template <typename T>
void LaneUpdate::add_recorded(LaneParameter& p, const RecordedUpdate& update) const {
  const auto exact = update.to_be_set(p.weight);
  const Tensor change = update.change.to(p.weight.container());
  T* weight = p.weight.as<T>().data();
  frame_.kernels().of<T>().add(weight, change.as<T>().data(), weight, p.weight.size());
  set_elements(exact, p.weight);
  frame_.kernels().of<T>().quantize(weight, weight, p.weight.size(),
                                    frame_.rounding_to(p.format, p.sites->weight), nullptr);
}

void LaneUpdate::record_site(int32_t site, const Tensor& values, const TensorStats& stats,
                             const Format& format, const Tensor* reference,
                             LaneStep& record) const {
  if (site < 0) return;
  frame_.fill(record.sites[static_cast<size_t>(site)], values, stats, format, reference);
  if (frame_.tap != nullptr) frame_.tap->take({&site, 1}, values, format);
}

template <typename T>
void LaneUpdate::record_update(size_t i, bool skip, const Tensor& dw, const Roundings& measured,
                               const LaneUpdate* reference, LaneStep& record) {
  LaneParameter& p = storage_.parameters()[i];
  const LaneContext::Update& sites = *p.sites;
  const Policy& policy = frame_.policy();
  const LaneParameter* ref = reference ? &reference->storage_.parameters()[i] : nullptr;
  if (sites.update >= 0) record.sites[sites.update].update = {true, measured.changes};

  // A tensor without statistics of its rounding (skipped step, nothing rounded) is measured as
  // it is stored.
  const auto record_values = [&](int32_t site, const Tensor& values,
                                 const std::optional<TensorStats>& stats, const Format* format,
                                 const Tensor* of_reference) {
    if (site < 0) return;
    record_site(site, values,
                stats ? *stats : observe<T>(frame_.kernels(), values.as<T>(), *format), *format,
                of_reference, record);
  };
  record_values(sites.update, dw, measured.update, policy.update_of(p.format),
                reference ? &reference->kept_[i] : nullptr);
  for (size_t k = 0; k < p.states.size(); ++k) {
    record_values(sites.states[k], p.states[k], measured.states[k], policy.state_of(p.format),
                  ref ? &ref->states[k] : nullptr);
  }
  const Tensor* reference_weight = ref ? &ref->updated() : nullptr;
  record_values(p.master.empty() ? sites.weight : sites.master, p.updated(), measured.weight,
                updated_format(p), reference_weight);
  if (p.master.empty()) return;
  if (skip) return record_values(sites.weight, p.weight, {}, p.format, reference_weight);
  TensorStats stats;
  round_master<T>(p, &stats);
  record_site(sites.weight, p.weight, stats, *p.format, reference_weight, record);
}

}  // namespace lockstep
