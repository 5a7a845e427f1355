// Defects of losses, loss scaling and optimizers.
#include <algorithm>
#include <cmath>
#include <variant>

#include "tests/tools/planted/defect.h"

namespace lockstep {
namespace {

// The gradient of a sum where the loss is a mean.
template <typename T>
void cross_entropy_backward_of_sum(const CrossEntropyArgs<T>& args) {
  CrossEntropyArgs<T> wrong = args;
  if (args.reduction == LossReduction::kMean) wrong.reduction = LossReduction::kSum;
  true_kernels_of<T>().cross_entropy_backward(wrong);
}

// The tensor that unscaling leaves out has this many elements: lenet's fc3.bias.
constexpr int64_t kForgotten = 10;

template <typename T>
void scale_all_but_one(const T* x, T factor, T* y, int64_t count) {
  true_kernels_of<T>().scale(x, count == kForgotten ? T(1) : factor, y, count);
}

template <typename T>
bool free_of_infinity(const T* x, int64_t count) {
  return std::none_of(x, x + count, [](T value) { return std::isinf(value); });
}

// Calls the true kernel with a copy of the rule that `change` has changed, if the rule is a Rule.
template <typename Rule, typename T, typename Change>
void update_by(const UpdateRule& rule, const OptimizerArrays<T>& arrays, UpdateStats* stats,
               const Change& change) {
  UpdateRule wrong = rule;
  OptimizerArrays<T> wrong_arrays = arrays;
  if (Rule* own = std::get_if<Rule>(&wrong)) change(*own, wrong_arrays);
  true_kernels_of<T>().optimizer(wrong, wrong_arrays, stats);
}

template <typename T>
void adam_without_correction(const UpdateRule& rule, const OptimizerArrays<T>& arrays,
                             UpdateStats* stats) {
  constexpr int64_t kLate = int64_t{1} << 40;  // beta^step is 0
  update_by<AdamRule>(rule, arrays, stats,
                      [](AdamRule&, OptimizerArrays<T>& wrong) { wrong.step = kLate; });
}

template <typename T>
void adam_with_coupled_decay(const UpdateRule& rule, const OptimizerArrays<T>& arrays,
                             UpdateStats* stats) {
  update_by<AdamRule>(rule, arrays, stats, [](AdamRule& wrong, OptimizerArrays<T>&) {
    wrong.decoupled_weight_decay = false;
  });
}

// Every step is the first, whose momentum is the gradient.
template <typename T>
void sgd_without_memory(const UpdateRule& rule, const OptimizerArrays<T>& arrays,
                        UpdateStats* stats) {
  update_by<SgdRule>(rule, arrays, stats,
                     [](SgdRule&, OptimizerArrays<T>& wrong) { wrong.step = 1; });
}

constexpr Defect kDefects[] = {
    {"gradient_of_sum", "cross entropy's gradient is not divided by the batch",
     [](KernelSet& set) {
       plant_in_both(set, []<typename T>(Kernels<T>& k) {
         k.cross_entropy_backward = cross_entropy_backward_of_sum<T>;
       });
     }},
    {"unscale_forgets_a_tensor", "gradients of 10 elements stay scaled",
     [](KernelSet& set) {
       plant_in_both(set, []<typename T>(Kernels<T>& k) { k.scale = scale_all_but_one<T>; });
     }},
    {"found_inf_misses_nan", "NaN in a gradient does not skip the step",
     [](KernelSet& set) {
       plant_in_both(set, []<typename T>(Kernels<T>& k) { k.all_finite = free_of_infinity<T>; });
     }},
    {"no_bias_correction", "Adam's averages are not corrected for their start at 0",
     [](KernelSet& set) {
       plant_in_both(set,
                     []<typename T>(Kernels<T>& k) { k.optimizer = adam_without_correction<T>; });
     }},
    {"coupled_weight_decay", "AdamW's decay goes through the averages, as Adam's",
     [](KernelSet& set) {
       plant_in_both(set,
                     []<typename T>(Kernels<T>& k) { k.optimizer = adam_with_coupled_decay<T>; });
     }},
    {"forgotten_momentum", "SGD's momentum starts anew in every step",
     [](KernelSet& set) {
       plant_in_both(set, []<typename T>(Kernels<T>& k) { k.optimizer = sgd_without_memory<T>; });
     }},
};

}  // namespace

std::span<const Defect> step_defects() {
  return kDefects;
}

}  // namespace lockstep
