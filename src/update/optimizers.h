// THE table of optimizers, and what a step of each needs.
// One row per optimizer: its numbers, its states and its update rule. Knows one parameter's arrays;
// the lane decides which gradients are skipped or unscaled.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "emulation/kernels/args/optimizer_args.h"
#include "emulation/kernels/kernel_set.h"
#include "emulation/kernels/optimizer_rules.h"
#include "src/core/tensor.h"
#include "src/update/hyper_parameters.h"
#include "src/update/optimizer_spec.h"
#include "src/update/tensor_rule.h"

namespace lockstep {

// The elements of a state tensor.
enum class StateExtent : uint8_t {
  kWhole,    // those of the weight
  kRows,     // of a matrix or a stack of them: one for each row, the last axis 1
  kColumns,  // the same for its columns, the last axis but one 1
};

struct OptimizerState {
  std::string_view name;
  double initial = 0;
  bool divides = false;
  StateExtent extent = StateExtent::kWhole;

  Shape shape_for(Shape weight) const;
};

// A state tensor that a parameter may have.
struct StateRow {
  enum class Of : uint8_t { kAll, kVectors, kMatrices };  // kMatrices: of rank 2 or more
  std::string_view name;
  std::string_view only_with = {};  // exists if this number is not 0; "": always
  std::string_view initial = {};    // the number that gives its first value; "": 0
  bool divides = false;             // the update is divided by its root: a zero leaves eps alone
  StateExtent extent = StateExtent::kWhole;
  Of of = Of::kAll;
};

struct Optimizer {
  std::string_view name, help, source;
  std::span<const HyperParameter> parameters;
  std::span<const StateRow> all_states;
  UpdateRule (*rule)(const HyperNumbers&, double lr) = nullptr;
  // Steps of whole tensors instead of `rule`, which is null then.
  TensorRule tensor_rule = {};
  bool matrices_alone = false;  // parameters of rank 2 or more
  bool takes(const Shape& shape) const { return !matrices_alone || shape.size() >= 2; }
  // The combination that is invalid, "" if none; ranges are already checked. Null: all are valid.
  std::string_view (*conflict)(const HyperNumbers&) = nullptr;

  // --- in a capture ---
  // The class in torch.optim whose groups and states have the row's names (betas are beta1, beta2);
  // "": its updates are recorded.
  std::string_view captured_class = {};
  std::string_view captured_package = "torch";  // that has the class
  // Torch's class keeps a step count. False: its first step is the one without states.
  bool counts_steps = true;

  // The flag of sums of narrow numbers in every lane, which PyTorch forms in another order.
  std::string_view narrow_sums = {};

  // --- in narrow formats (vanishing.h) ---
  // Whether lr is a scalar of torch's add, which its CPU kernel rounds to the tensors' format.
  // Null: it never is.
  bool (*adds_lr)(const HyperNumbers&) = nullptr;
  // The numbers that multiply an old average.
  std::span<const std::string_view> average_factors = {};
  // The size of a step is not lr alone.
  bool chooses_step = false;
  // The step is proportional to the gradient, so a decay added to the gradient has a known size.
  bool is_linear = false;

  // The state tensors of a parameter (e.g. none for SGD without momentum).
  std::vector<OptimizerState> states(const HyperNumbers& numbers, const Shape& shape) const;
};

std::span<const Optimizer> optimizers();
// The row of captures whose optimizer is not in the table, and not in the table itself: the kernel
// gets the updates that PyTorch made (recorded_update.h) in the place of gradients. No numbers.
const Optimizer& recorded_updates();
// Also by the name of recorded_updates(). Throws: InputError, did-you-mean.
const Optimizer& find_optimizer(std::string_view name);

// Throws: InputError: unknown optimizer, unknown numbers, every value outside its range.
void check_optimizer_spec(const OptimizerSpec& spec);

// All numbers of the spec's optimizer.
HyperNumbers numbers_of(const OptimizerSpec& spec);
// The largest number of states that a parameter may have.
int state_count(const OptimizerSpec& spec);

// One step with the learning rate of this step.
template <typename T>
void optimizer_step(const KernelSet& kernels, const Optimizer& optimizer,
                    const HyperNumbers& numbers, double lr, const OptimizerArrays<T>& arrays,
                    UpdateStats* stats);

// GradScaler.unscale_ multiplies gradients by this factor: the double reciprocal, rounded to FP32.
// Infinite for scale <= 2^-128.
float unscale_factor(double scale);

}  // namespace lockstep
