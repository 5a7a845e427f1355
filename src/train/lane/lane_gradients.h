// A lane's gradients between backward and the optimizer: sums over micro-batches, workers and
// losses, the search for non-finite values, unscaling and clipping. It reads the parameters and
// changes none.
#pragma once

#include <cstdint>
#include <vector>

#include "src/train/lane/lane_frame.h"
#include "src/train/lane/lane_scalers.h"
#include "src/train/lane/lane_storage.h"

namespace lockstep {

class LaneGradients {
 public:
  // All must outlive the gradients. Holds no tensor before start(), when the parameters have
  // theirs.
  LaneGradients(const LaneFrame& frame, const std::vector<LaneParameter>& parameters,
                const LaneScalers& scalers);
  void start();

  void begin_step();
  // Adds those of the pass that has just run. Gradients are used directly from the executor, unless
  // several passes add up or clipping changes them first.
  void add(int64_t micro_batch, int64_t worker, LaneStep& record);
  // With several workers. The reference's gradients must have entered, but not been reduced:
  // entering ones are compared with them. A worker's share of the mean is g / W. Values that are
  // divided by less before the sum are that much larger. The reference, which has the default
  // policy, divides before.
  void enter_all_reduce(const LaneGradients* reference, LaneStep& record);
  void all_reduce(const LaneGradients* reference, LaneStep& record);
  FoundInf found_inf() const;
  // What follows the search: adds up the losses, unscales and clips, as far as gradients are kept.
  void finish(LaneStep& record);

  // Whether a parameter, by its number, has one in this step: its paths lead through the weight.
  bool has(size_t parameter) const { return gradients_[parameter].is_set; }
  // What the optimizer reads, valid until the next call. After finish().
  const Tensor& for_optimizer(size_t parameter);
  // Of what is kept between steps and of scratch, also before it is there.
  int64_t bytes() const;

 private:
  struct Gradient {
    bool is_set = false;
    // Over the micro-batches and the losses, if it is changed before its use.
    Tensor sum;
    // Its parts by backward pass, if they are kept apart; empty for a pass without a gradient.
    std::vector<Tensor> of_losses;
    // By sum (one per pass, or a single one) and worker, if there are several workers.
    std::vector<std::vector<Tensor>> of_workers;
    Tensor& sum_of(size_t pass) { return of_losses.empty() ? sum : of_losses[pass]; }
    const Tensor& sum_of(size_t pass) const { return of_losses.empty() ? sum : of_losses[pass]; }
  };

  bool are_kept() const;
  bool are_losses_apart() const;
  Gradient sums_for(const LaneParameter& parameter) const;
  bool is_reached(const LaneParameter& parameter, size_t pass) const;
  const Tensor& current(size_t parameter) const;
  const Format* unscaled_format(const LaneParameter& parameter) const;
  const Format* reduced_format(const LaneParameter& parameter) const;  // still scaled
  void keep(size_t parameter, bool first, int64_t worker, LaneStep& record);
  void add_up_losses();
  void add_up_losses(const LaneParameter& parameter, Gradient& gradient);
  const Tensor& unscaled(size_t scaler, const Tensor& gradient);
  double clip_all();
  double clip(const std::vector<size_t>& groups);
  std::vector<double> norms() const;

  const LaneFrame& frame_;
  const std::vector<LaneParameter>& parameters_;
  const LaneScalers& scalers_;
  std::vector<Gradient> gradients_;  // by parameter
  Tensor unscaled_;                  // scratch: one gradient after unscaling
};

}  // namespace lockstep
