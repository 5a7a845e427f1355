// See lane_gradients.h.
#include "src/train/lane/lane_gradients.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "emulation/kernels/quantize.h"
#include "src/execute/storage.h"
#include "src/update/all_reduce.h"
#include "src/update/clip.h"

namespace lockstep {

LaneGradients::LaneGradients(const LaneFrame& frame, const std::vector<LaneParameter>& parameters,
                             const LaneScalers& scalers)
    : frame_(frame), parameters_(parameters), scalers_(scalers) {}

void LaneGradients::start() {
  for (const LaneParameter& p : parameters_) gradients_.push_back(sums_for(p));
}

bool LaneGradients::are_kept() const {
  const RunOptions& options = frame_.options();
  return options.micro_steps() > 1 || options.clip_norm > 0 || options.clip_value > 0 ||
         frame_.context.step_graph->passes.size() > 1;
}

// Losses with one scale add up as they come, in p.grad. If each has a scale, each is unscaled
// first. Workers exchange every loss's gradients after its pass.
bool LaneGradients::are_losses_apart() const {
  return frame_.context.step_graph->passes.size() > 1 &&
         (scalers_.is_per_loss() || frame_.options().workers > 1);
}

LaneGradients::Gradient LaneGradients::sums_for(const LaneParameter& p) const {
  Gradient out;
  if (!p.trains) return out;
  const Tensor zeros(p.weight.shape(), p.weight.container());
  const auto workers = static_cast<size_t>(frame_.options().workers);
  if (are_kept()) out.sum = zeros;
  if (are_losses_apart()) {
    for (const bool reached : p.reached) out.of_losses.push_back(reached ? zeros : Tensor());
  }
  if (workers == 1) return out;
  for (size_t k = 0; k < std::max<size_t>(1, out.of_losses.size()); ++k) {
    const bool has_sum = out.of_losses.empty() || p.reached[k];
    out.of_workers.emplace_back(has_sum ? workers : 0, zeros);
  }
  return out;
}

void LaneGradients::begin_step() {
  for (Gradient& gradient : gradients_) gradient.is_set = false;
}

// As it is now, still scaled.
const Tensor& LaneGradients::current(size_t i) const {
  return are_kept() ? gradients_[i].sum : frame_.runner->gradient(parameters_[i].name);
}

// On the path of the micro-batch in progress.
bool LaneGradients::is_reached(const LaneParameter& p, size_t pass) const {
  return p.reached[pass] && pass_gradients(frame_.runner->graph(), pass).contains(p.name);
}

// Unscaled gradients go to the updated tensor: masters receive them in their own format; without
// masters they stay in p.grad, as in GradScaler.unscale_.
const Format* LaneGradients::unscaled_format(const LaneParameter& p) const {
  return p.master.empty() ? reduced_format(p) : frame_.policy().master;
}

const Format* LaneGradients::reduced_format(const LaneParameter& p) const {
  return frame_.gradient_formats(p.format).reduced;
}

void LaneGradients::add(int64_t micro_batch, int64_t worker, LaneStep& record) {
  for (size_t i = 0; i < gradients_.size(); ++i) {
    bool& is_set = gradients_[i].is_set;
    if (are_kept()) keep(i, micro_batch == 0 || !is_set, worker, record);
    for (size_t pass = 0; pass < parameters_[i].reached.size(); ++pass) {
      is_set |= is_reached(parameters_[i], pass);
    }
  }
}

// `first`: nothing is in the step's sums yet.
void LaneGradients::keep(size_t i, bool first, int64_t worker, LaneStep& record) {
  const LaneParameter& p = parameters_[i];
  Gradient& g = gradients_[i];
  bool begun = false;
  for (size_t pass = 0; pass < p.reached.size(); ++pass) {
    if (!is_reached(p, pass)) continue;
    const size_t k = g.of_losses.empty() ? 0 : pass;
    Tensor& sum = g.of_workers.empty() ? g.sum_of(k) : g.of_workers[k][static_cast<size_t>(worker)];
    const int32_t site = frame_.runner->gradient_site(p.name, pass);
    const bool adds_up = frame_.context.micro_batches(frame_.step) > 1;
    const bool measure = frame_.measures() && adds_up && site >= 0;
    const UpdateRecord added =
        frame_.runner->add_gradient(p.name, pass, first && (k == pass || !begun),
                                    frame_.gradient_formats(p.format).sum, sum, measure);
    if (measure) record.sites[static_cast<size_t>(site)].update.merge(added);
    begun = true;
  }
}

const Tensor& LaneGradients::unscaled(size_t scaler, const Tensor& gradient) {
  if (!scalers_.unscaling_changes(scaler)) return gradient;
  if (unscaled_.size() < gradient.size()) {
    unscaled_ = Tensor(gradient.shape(), gradient.container());
  }
  scalers_.unscale(scaler, gradient, unscaled_);
  return unscaled_;
}

void LaneGradients::add_up_losses() {
  for (size_t i = 0; i < gradients_.size(); ++i) add_up_losses(parameters_[i], gradients_[i]);
}

// Adds up the losses' gradients, which were kept apart so far. If each has a scale they are
// unscaled into the masters' format, or the weight's, as in apex's unscale_with_stashed; with one
// scale they stay scaled, as in p.grad.
void LaneGradients::add_up_losses(const LaneParameter& p, Gradient& g) {
  const bool unscales = scalers_.is_per_loss();
  const Format* format = unscales ? unscaled_format(p) : reduced_format(p);
  bool begun = false;
  for (size_t pass = 0; pass < g.of_losses.size(); ++pass) {
    const Tensor& from = g.of_losses[pass];
    if (from.empty()) continue;
    const Tensor& own = unscales ? unscaled(pass, from) : from;
    frame_.typed([&]<typename T>(T) {
      T* sum = g.sum.as<T>().data();
      if (begun) {
        frame_.kernels().of<T>().add(sum, own.as<T>().data(), sum, from.size());
      } else {
        std::copy_n(own.as<T>().data(), from.size(), sum);
      }
      quantize<T>(frame_.kernels(), g.sum.as<T>(), g.sum.as<T>(), {format}, nullptr);
    });
    begun = true;
  }
}

void LaneGradients::enter_all_reduce(const LaneGradients* reference, LaneStep& record) {
  const AllReduce& how = frame_.policy().all_reduce;
  const int64_t workers = frame_.options().workers;
  const bool measures = frame_.measures();
  for (size_t i = 0; i < gradients_.size(); ++i) {
    const LaneParameter& p = parameters_[i];
    const Format& format = *frame_.gradient_formats(p.format).sent;
    auto& of_workers = gradients_[i].of_workers;
    for (size_t k = 0; k < of_workers.size(); ++k) {
      const double scale = scalers_.scale(scalers_.of_pass(k)) * static_cast<double>(workers) /
                           divisor_before(how, workers);
      SiteRecord all;
      for (size_t w = 0; w < of_workers[k].size(); ++w) {
        TensorStats stats;
        lockstep::enter_all_reduce(frame_.kernels(), how, format, workers, of_workers[k][w],
                                   measures ? &stats : nullptr);
        if (!measures) continue;
        SiteRecord one;
        frame_.fill(one, of_workers[k][w], stats, format,
                    reference == nullptr ? nullptr : &reference->gradients_[i].of_workers[k][w],
                    scale);
        all.merge(one);
      }
      if (all.measured) record.sites[p.sites->entering[k]] = all;
    }
  }
}

void LaneGradients::all_reduce(const LaneGradients* reference, LaneStep& record) {
  const AllReduce& how = frame_.policy().all_reduce;
  for (size_t i = 0; i < gradients_.size(); ++i) {
    const LaneParameter& p = parameters_[i];
    const GradientFormats formats = frame_.gradient_formats(p.format);
    Gradient& g = gradients_[i];
    for (size_t k = 0; k < g.of_workers.size(); ++k) {
      if (g.of_workers[k].empty()) continue;
      TensorStats stats;
      lockstep::all_reduce(frame_.kernels(), how, *formats.sent, *formats.reduced, g.of_workers[k],
                           g.sum_of(k), frame_.measures() ? &stats : nullptr);
      if (!frame_.measures()) continue;
      SiteRecord& out = record.sites[p.sites->reduced[k]] = {};
      frame_.fill(out, g.sum_of(k), stats, *formats.reduced,
                  reference == nullptr ? nullptr : &reference->gradients_[i].sum_of(k),
                  scalers_.scale(scalers_.of_pass(k)));
    }
  }
  if (are_losses_apart() && !scalers_.is_per_loss()) add_up_losses();
}

FoundInf LaneGradients::found_inf() const {
  FoundInf found(scalers_.count(), std::vector<bool>(frame_.context.groups.size(), false));
  for (size_t i = 0; i < gradients_.size(); ++i) {
    if (!has(i)) continue;
    const size_t group = parameters_[i].sites->group;
    for (size_t scaler = 0; scaler < found.size(); ++scaler) {
      if (found[scaler][group]) continue;
      if (!scalers_.is_per_loss()) {
        found[scaler][group] = !scalers_.stays_finite(current(i), scaler);
      } else if (parameters_[i].reached[scaler]) {
        found[scaler][group] = !scalers_.stays_finite(gradients_[i].of_losses[scaler], scaler);
      }
    }
  }
  return found;
}

void LaneGradients::finish(LaneStep& record) {
  if (scalers_.is_per_loss()) add_up_losses();
  if (are_kept()) record.gradient_norm = clip_all();
  if (frame_.context.loop != nullptr && frame_.options().measuring.on) {
    record.gradient_norms = norms();
  }
}

// Groups that skip on their own have separate optimizers and are clipped separately: an infinity in
// one must not scale the others' gradients to nothing. Returns the total norm before clipping, NaN
// if none is computed.
double LaneGradients::clip_all() {
  std::vector<size_t> groups(frame_.context.groups.size());
  std::iota(groups.begin(), groups.end(), size_t{0});
  if (!frame_.policy().loss_scale_use.skip_by_group) return clip(groups);
  std::vector<double> norms;
  for (const size_t group : groups) norms.push_back(clip({group}));
  return norm_of_norms(frame_.kernels(), norms, frame_.options().clip_norm_type);
}

// In double, one element after the other. Gradients that are not kept are unscaled on their way
// into the optimizer; the norm is then unscaled here, after the sum.
std::vector<double> LaneGradients::norms() const {
  std::vector<double> norms(gradients_.size(), std::numeric_limits<double>::quiet_NaN());
  const double divisor = are_kept() ? 1.0 : scalers_.scale(0);
  for (size_t i = 0; i < gradients_.size(); ++i) {
    if (!has(i)) continue;
    const Tensor& g = current(i);
    const double squares = frame_.typed([&]<typename T>(T) {
      return frame_.kernels().of<T>().sum_of_squares(g.as<T>().data(), g.size());
    });
    norms[i] = std::sqrt(squares) / divisor;
  }
  return norms;
}

// Unscales and clips the groups' gradients in place, or clips first if the policy makes that
// mistake.
double LaneGradients::clip(const std::vector<size_t>& groups) {
  const RunOptions& options = frame_.options();
  const CapturedLoop* loop = frame_.context.loop;
  const bool clips_scaled =
      frame_.policy().loss_scale_use.clip_before_unscale || (loop != nullptr && loop->clips_scaled);
  std::vector<ClippedGradient> gradients;
  for (size_t i = 0; i < gradients_.size(); ++i) {
    const LaneParameter& p = parameters_[i];
    if (!has(i) || std::ranges::count(groups, p.sites->group) == 0) continue;
    gradients.push_back(
        {&gradients_[i].sum, clips_scaled ? reduced_format(p) : unscaled_format(p)});
  }
  const auto unscale_all = [&] {
    if (scalers_.is_per_loss() || !scalers_.unscaling_changes(0)) return;  // or add_up_losses did
    for (const ClippedGradient& gradient : gradients) {
      scalers_.unscale(0, *gradient.values, *gradient.values);
      store(frame_.kernels(), *gradient.values, *gradient.values, {gradient.format});
    }
  };
  if (!clips_scaled) unscale_all();
  double norm = std::numeric_limits<double>::quiet_NaN();
  if (options.clip_norm > 0) {
    norm = clip_by_norm(frame_.kernels(), gradients, options.clip_norm, options.clip_norm_type);
  }
  if (options.clip_value > 0) clip_by_value(frame_.kernels(), gradients, options.clip_value);
  if (clips_scaled) unscale_all();
  return norm;
}

const Tensor& LaneGradients::for_optimizer(size_t i) {
  const Tensor& gradient = current(i);
  if (are_kept() || !scalers_.unscaling_changes(0)) return gradient;
  unscaled(0, gradient);
  frame_.typed([&]<typename T>(T) {
    T* values = unscaled_.as<T>().data();
    frame_.kernels().of<T>().quantize(values, values, gradient.size(),
                                      {unscaled_format(parameters_[i])}, nullptr);
  });
  return unscaled_;
}

int64_t LaneGradients::bytes() const {
  const int64_t workers = frame_.options().workers;
  const auto& all = frame_.context.step_graph->parameters;
  int64_t numbers = 0, largest = 0;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const LaneParameter& p = parameters_[i];
    if (!p.trains) continue;
    const int64_t size = element_count(all[i].type.shape);
    const int64_t apart = are_losses_apart() ? std::ranges::count(p.reached, true) : 0;
    numbers += size * (are_kept() + apart);
    if (workers > 1) numbers += size * workers * (are_losses_apart() ? apart : 1);
    largest = std::max(largest, size);
  }
  if (!are_kept() && scalers_.unscaling_changes(0)) numbers += largest;  // unscaled_
  return numbers * static_cast<int64_t>(bytes_of(frame_.container()));
}

}  // namespace lockstep
