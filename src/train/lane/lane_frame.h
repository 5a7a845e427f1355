// What all parts of a lane share: its policy, how far its run is, how much of it is measured, and
// how its numbers are rounded and compared.
#pragma once

#include <cstdint>

#include "src/execute/step_measuring.h"
#include "src/execute/step_runner.h"
#include "src/execute/value_tap.h"
#include "src/train/lane/lane_context.h"
#include "src/train/run_description.h"

namespace lockstep {

// What a parameter's gradient is rounded to after the backward pass.
struct GradientFormats {
  const Format* sum;      // over micro-batches
  const Format* sent;     // by each worker, and sums over workers
  const Format* reduced;  // as the scaler, clipping and the optimizer find it, still scaled
};

struct LaneFrame {
  const LaneContext& context;
  LaneDescription description;
  StepRunner* runner = nullptr;              // of the micro-batch in progress, or of the last one
  SiteDetail detail = SiteDetail::kNothing;  // of what is measured now
  ValueTap* tap = nullptr;
  int64_t step = -1;        // the step in progress
  int64_t micro_step = -1;  // number of earlier passes, over all steps and workers

  const RunOptions& options() const { return *context.options; }
  const Policy& policy() const { return description.policy; }
  bool measures() const { return detail == SiteDetail::kEverything; }
  Container container() const { return runner->executor().rules().container; }
  const KernelSet& kernels() const { return runner->kernels(); }
  // work(T()) with the type of the lane's numbers.
  template <typename Work>
  auto typed(const Work& work) const {
    return container() == Container::kF64 ? work(double()) : work(float());
  }

  ExecutionKey key() const;  // of the micro-batch in progress
  // `own`: of the gradient as the backward pass leaves it, the weight's. [accumulate] acts only in
  // runs with several micro-batches, [all_reduce] only with several workers.
  GradientFormats gradient_formats(const Format* own) const;
  QuantizeSpec rounding_to(const Format* format, int32_t site) const;
  // Sets what is measured of `values`, whose rounding had these statistics. The error is that
  // against `reference` (FP32), null: this is the reference. `scale`: the values are multiplied by
  // it; one that is not positive and finite leaves nothing to compare.
  void fill(SiteRecord& record, const Tensor& values, const TensorStats& stats,
            const Format& format, const Tensor* reference, double scale = 1) const;
};

}  // namespace lockstep
