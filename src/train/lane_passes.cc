// The forward and backward passes of a lane's step, one for every micro-batch and worker.
#include <algorithm>
#include <cmath>

#include "src/execute/finite.h"
#include "src/train/lane.h"

namespace lockstep {

// Values of one shape at a time are in memory.
void Lane::choose_runner(size_t number) {
  StepRunner* chosen = runners_[number].get();
  if (chosen != runner_) runner_->forget_values();
  runner_ = chosen;
}

// The loss is divided by the number of micro-batches, so that their gradients add up to the mean's;
// a captured loop may have divided by another number. The all-reduce computes the mean over
// workers. Stochastic keys count micro-batches as if every step had as many as the longest.
void Lane::begin_micro_batch(int64_t step, int64_t micro_batch, const Batch& batch, int64_t worker,
                             const Lane* reference, std::span<SiteRecord> sites) {
  const int64_t count = context_.options->accumulate;
  step_ = step;
  micro_step_ = (step * count + micro_batch) * context_.options->workers + worker;
  choose_runner(context_.graph_of(step, micro_batch));
  if (micro_batch == 0 && worker == 0) {
    for (ParameterState& p : parameters_) p.has_gradient = false;
  }
  StepPass pass{.key = key(),
                .loss_scales = {},
                .loss_divisor = context_.loss_divisor(step, micro_batch),
                .sample_sums = context_.options->measuring.samples_sums(step)};
  for (size_t i = 0; i < pass_count(*context_.step_graph); ++i) {
    pass.loss_scales.push_back(scale(scaler_of(i)));
  }
  runner_->begin(pass, batch, reference == nullptr ? nullptr : reference->runner_,
                 records_of(sites));
}

void Lane::run_node(int node, const Lane* reference, std::vector<SiteRecord>& sites) {
  runner_->run_node(node, reference == nullptr ? nullptr : reference->runner_, records_of(sites));
}

void Lane::finish_micro_batch(int64_t micro_batch, LaneStep& record, int64_t worker) {
  const int64_t workers = context_.options->workers;
  const double count = static_cast<double>(context_.micro_batches(step_) * workers);
  if (worker == 0) {
    if (workers > 1) next_buffers_ = buffers_;
    // Skipped steps included: they too had a forward pass.
    runner_->take_mutations(workers > 1 ? next_buffers_ : buffers_);
  }
  if (workers > 1 && worker == workers - 1) {
    for (auto& [name, tensor] : buffers_) tensor = next_buffers_.at(name);
  }
  record.loss += runner_->loss() / count;
  record.losses.resize(context_.losses.size());
  for (size_t i = 0; i < context_.losses.size(); ++i) {
    record.losses[i] += runner_->loss(context_.losses[i]) / count;
  }
  for (ParameterState& p : parameters_) {
    if (keeps_gradients()) keep_gradients(p, micro_batch == 0 || !p.has_gradient, worker, record);
    for (size_t pass = 0; pass < p.reached.size(); ++pass) p.has_gradient |= is_reached(p, pass);
  }
}

void Lane::measure(SiteDetail detail) {
  detail_ = detail;
  for (const auto& runner : runners_) {
    runner->executor().count_only(detail == SiteDetail::kCounts);
  }
}

std::span<SiteRecord> Lane::records_of(std::span<SiteRecord> sites) const {
  return detail_ == SiteDetail::kNothing ? std::span<SiteRecord>() : sites;
}

void Lane::tap(ValueTap* tap) {
  tap_ = tap;
  for (const auto& runner : runners_) runner->executor().tap(tap);
}

bool Lane::is_finite(const LaneStep& record) const {
  const auto is_found = [](const std::vector<bool>& groups) {
    return std::ranges::count(groups, true) > 0;
  };
  const auto is_lost = [&](const auto& buffer) {
    const auto& [name, values] = buffer;
    return values.container() != Container::kI32 && !all_finite(kernels(), values) &&
           all_finite(kernels(), kept_buffers_.at(name));
  };
  return std::isfinite(record.loss) && std::ranges::none_of(found_inf(), is_found) &&
         std::ranges::none_of(buffers_, is_lost);
}

void Lane::take_buffers_back() {
  for (auto& [name, tensor] : buffers_) tensor = kept_buffers_.at(name);
  for (auto& [name, tensor] : scaling_.tensors()) tensor = kept_scaling_.at(name);
}

}  // namespace lockstep
