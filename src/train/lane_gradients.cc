// A lane's gradients between backward and the optimizer: sums over micro-batches, workers and
// losses, the search for non-finite values, unscaling and clipping.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>

#include "emulation/kernels/quantize.h"
#include "src/execute/finite.h"
#include "src/train/lane.h"
#include "src/update/all_reduce.h"
#include "src/update/clip.h"

namespace lockstep {

// Gradients are used directly from the executor, unless several passes add up or clipping changes
// them first.
bool Lane::keeps_gradients() const {
  const RunOptions& options = *context_.options;
  return options.micro_steps() > 1 || options.clip_norm > 0 || options.clip_value > 0 ||
         context_.step_graph->passes.size() > 1;
}

// Losses with one scale add up as they come, in p.grad. If each has a scale, each is unscaled
// first. Workers exchange every loss's gradients after its pass.
bool Lane::keeps_losses_apart() const {
  return context_.step_graph->passes.size() > 1 &&
         (separates_losses() || context_.options->workers > 1);
}

void Lane::make_sums(ParameterState& p) const {
  const Shape& shape = p.weight.shape();
  const Container container = p.weight.container();
  const auto workers = static_cast<size_t>(context_.options->workers);
  if (keeps_gradients()) p.sum = Tensor(shape, container);
  if (keeps_losses_apart()) {
    for (const bool reached : p.reached) {
      p.of_losses.push_back(reached ? Tensor(shape, container) : Tensor());
    }
  }
  if (workers == 1) return;
  for (size_t k = 0; k < std::max<size_t>(1, p.of_losses.size()); ++k) {
    const size_t count = p.has_sum(k) ? workers : 0;
    p.of_workers.emplace_back(count, Tensor(shape, container));
  }
}

const Tensor& Lane::gradient(const ParameterState& p) const {
  return keeps_gradients() ? p.sum : computed_gradient(p, 0);
}

const Tensor& Lane::computed_gradient(const ParameterState& p, size_t pass) const {
  return runner_->gradient(p.name, pass);
}

// On the path of the micro-batch in progress.
bool Lane::is_reached(const ParameterState& p, size_t pass) const {
  return p.reached[pass] && pass_gradients(runner_->graph(), pass).contains(p.name);
}

// Unscaled gradients go to the updated tensor: masters receive them in their own format; without
// masters they stay in p.grad, as in GradScaler.unscale_.
const Format* Lane::unscaled_format(const ParameterState& p) const {
  return p.master.empty() ? p.format : description_.policy.master;
}

// `first`: nothing is in the step's sums yet.
void Lane::keep_gradients(ParameterState& p, bool first, int64_t worker, LaneStep& record) {
  bool begun = false;
  for (size_t pass = 0; pass < p.reached.size(); ++pass) {
    if (!is_reached(p, pass)) continue;
    const size_t k = p.of_losses.empty() ? 0 : pass;
    Tensor& sum = p.of_workers.empty() ? p.sum_of(k) : p.of_workers[k][static_cast<size_t>(worker)];
    const int32_t site = runner_->gradient_site(p.name, pass);
    const bool adds_up = context_.micro_batches(step_) > 1;
    const bool measure = measures() && adds_up && site >= 0;
    const UpdateRecord added =
        runner_->add_gradient(p.name, pass, first && (k == pass || !begun), sum, measure);
    if (measure) record.sites[static_cast<size_t>(site)].update.merge(added);
    begun = true;
  }
}

// Adds up the losses' gradients, which were kept apart so far. If each has a scale they are
// unscaled into the masters' format, or the weight's, as in apex's unscale_with_stashed; with one
// scale they stay scaled, as in p.grad.
void Lane::add_up_losses() {
  for (ParameterState& p : parameters_) {
    const Format* format = separates_losses() ? unscaled_format(p) : p.format;
    bool begun = false;
    const auto add = [&]<typename T>(T, size_t pass) {
      const Tensor& from = p.of_losses[pass];
      const T* own = from.as<T>().data();
      T* sum = p.sum.as<T>().data();
      if (separates_losses() && unscaling_changes(pass)) {
        if (unscaled_.size() < from.size()) unscaled_ = Tensor(from.shape(), from.container());
        unscale(pass, own, unscaled_.as<T>().data(), from.size());
        own = unscaled_.as<T>().data();
      }
      if (begun) {
        kernels().of<T>().add(sum, own, sum, from.size());
      } else {
        std::copy_n(own, from.size(), sum);
      }
      quantize<T>(kernels(), p.sum.as<T>(), p.sum.as<T>(), {format}, nullptr);
    };
    for (size_t pass = 0; pass < p.of_losses.size(); ++pass) {
      if (p.of_losses[pass].empty()) continue;
      container() == Container::kF64 ? add(double(), pass) : add(float(), pass);
      begun = true;
    }
  }
}

// A worker's share of the mean is g / W. Values that are divided only after the sum are W times as
// large. The reference, which has the default policy, divides before.
void Lane::enter_all_reduce(const Lane* reference, LaneStep& record) {
  const AllReduce& how = description_.policy.all_reduce;
  const int64_t workers = context_.options->workers;
  for (ParameterState& p : parameters_) {
    const ParameterState* ref = partner(reference, p);
    const Format& format = how.format == nullptr ? *p.format : *how.format;
    for (size_t k = 0; k < p.of_workers.size(); ++k) {
      const double scale =
          this->scale(scaler_of(k)) * (how.divides_before ? 1 : static_cast<double>(workers));
      SiteRecord all;
      for (size_t w = 0; w < p.of_workers[k].size(); ++w) {
        TensorStats stats;
        lockstep::enter_all_reduce(kernels(), how, format, workers, p.of_workers[k][w],
                                   measures() ? &stats : nullptr);
        if (!measures()) continue;
        all.merge(gradient_record(p.of_workers[k][w], stats, format,
                                  ref == nullptr ? nullptr : &ref->of_workers[k][w], scale));
      }
      if (all.measured) record.sites[context_.updates.at(p.name).entering[k]] = all;
    }
  }
}

void Lane::all_reduce(const Lane* reference, LaneStep& record) {
  const AllReduce& how = description_.policy.all_reduce;
  for (ParameterState& p : parameters_) {
    const ParameterState* ref = partner(reference, p);
    for (size_t k = 0; k < p.of_workers.size(); ++k) {
      if (p.of_workers[k].empty()) continue;
      TensorStats stats;
      Tensor& sum = p.sum_of(k);
      lockstep::all_reduce(kernels(), how, how.format == nullptr ? *p.format : *how.format,
                           *p.format, p.of_workers[k], sum, measures() ? &stats : nullptr);
      if (!measures()) continue;
      record.sites[context_.updates.at(p.name).reduced[k]] = gradient_record(
          sum, stats, *p.format, ref == nullptr ? nullptr : &ref->sum_of(k), scale(scaler_of(k)));
    }
  }
  if (keeps_losses_apart() && !separates_losses()) add_up_losses();
}

bool Lane::unscaling_changes(size_t scaler) const {
  const bool divides = scaler_.unscale == LossScaler::Unscale::kDivide;
  return (divides ? scale(scaler) : unscale_factor(scales_[scaler].scale)) != 1;
}

template <typename T>
void Lane::unscale(size_t scaler, const T* from, T* to, int64_t count) const {
  if (scaler_.unscale == LossScaler::Unscale::kDivide) {
    const T divisor = scale(scaler);
    kernels().of<T>().divide(from, divisor, to, count);
  } else {
    const T factor = unscale_factor(scales_[scaler].scale);
    kernels().of<T>().scale(from, factor, to, count);
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
  } else if (scale > 0 && std::isfinite(scale)) {  // otherwise the scale has collapsed
    const auto compare = [&]<typename T>(T) {
      out.error =
          lockstep::compare<T>(kernels(), values.as<T>(), reference->as<float>(), scale, format);
    };
    container() == Container::kF64 ? compare(double()) : compare(float());
  }
  return out;
}

// Groups that skip on their own have separate optimizers and are clipped separately: an infinity in
// one must not scale the others' gradients to nothing. Returns the total norm before clipping, NaN
// if none is computed.
double Lane::clip_gradients() {
  std::vector<size_t> groups(context_.groups.size());
  std::iota(groups.begin(), groups.end(), size_t{0});
  if (!description_.policy.loss_scale_use.skip_by_group) return clip(groups);
  std::vector<double> norms;
  for (const size_t group : groups) norms.push_back(clip({group}));
  return norm_of_norms(kernels(), norms, context_.options->clip_norm_type);
}

// In double, one element after the other. Gradients that are not kept are unscaled on their way
// into the optimizer; the norm is then unscaled here, after the sum.
std::vector<double> Lane::gradient_norms() const {
  std::vector<double> norms(parameters_.size(), std::numeric_limits<double>::quiet_NaN());
  const double divisor = keeps_gradients() ? 1.0 : scale(0);
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (!parameters_[i].has_gradient) continue;
    const Tensor& g = gradient(parameters_[i]);
    const double squares = g.container() == Container::kF64
                               ? kernels().f64.sum_of_squares(g.as<double>().data(), g.size())
                               : kernels().f32.sum_of_squares(g.as<float>().data(), g.size());
    norms[i] = std::sqrt(squares) / divisor;
  }
  return norms;
}

// Unscales and clips the groups' gradients in place, or clips first if the policy makes that
// mistake.
double Lane::clip(const std::vector<size_t>& groups) {
  const RunOptions& options = *context_.options;
  const bool clips_scaled = description_.policy.loss_scale_use.clip_before_unscale ||
                            (context_.loop != nullptr && context_.loop->clips_scaled);
  std::vector<ClippedGradient> gradients;
  for (ParameterState& p : parameters_) {
    if (!p.has_gradient || std::ranges::count(groups, p.group) == 0) continue;
    gradients.push_back({&p.sum, clips_scaled ? p.format : unscaled_format(p)});
  }
  const auto unscale_all = [&] {
    if (separates_losses() || !unscaling_changes(0)) return;  // add_up_losses has unscaled
    for (const ClippedGradient& gradient : gradients) {
      const auto in_place = [&](auto values) {
        unscale(0, values.data(), values.data(), gradient.values->size());
        using T = typename decltype(values)::value_type;
        quantize<T>(kernels(), values, values, {gradient.format}, nullptr);
      };
      container() == Container::kF64 ? in_place(gradient.values->as<double>())
                                     : in_place(gradient.values->as<float>());
    }
  };
  if (!clips_scaled) unscale_all();
  double norm = std::numeric_limits<double>::quiet_NaN();
  if (options.clip_norm > 0) {
    norm = clip_by_norm(kernels(), gradients, options.clip_norm, options.clip_norm_type);
  }
  if (options.clip_value > 0) clip_by_value(kernels(), gradients, options.clip_value);
  if (clips_scaled) unscale_all();
  return norm;
}

// Whether the gradients are finite where the lane's scaler checks: as they arrive, still scaled
// (GradScaler.unscale_), or after the unscaling, which can overflow when the scale is below 1.
bool Lane::stays_finite(const Tensor& gradient, size_t scaler) const {
  if (scaler_.check != LossScaler::Check::kUnscaled) return all_finite(kernels(), gradient);
  Tensor unscaled(gradient.shape(), gradient.container());
  const auto fill = [&]<typename T>(T) {
    unscale(scaler, gradient.as<T>().data(), unscaled.as<T>().data(), gradient.size());
  };
  container() == Container::kF64 ? fill(double()) : fill(float());
  return all_finite(kernels(), unscaled);
}

// By scaler and parameter group: whether a gradient has a value that is not finite.
std::vector<std::vector<bool>> Lane::found_inf() const {
  std::vector<std::vector<bool>> found(scales_.size(),
                                       std::vector<bool>(context_.groups.size(), false));
  for (const ParameterState& p : parameters_) {
    if (!p.has_gradient) continue;
    for (size_t scaler = 0; scaler < scales_.size(); ++scaler) {
      if (found[scaler][p.group]) continue;
      if (separates_losses() && !p.has_sum(scaler)) continue;
      const Tensor& values = separates_losses() ? p.of_losses[scaler] : gradient(p);
      found[scaler][p.group] = !stays_finite(values, scaler);
    }
  }
  return found;
}

}  // namespace lockstep
