// The numbers of the update rules, named as in torch.optim. Their formulas are in
// optimizer_formulas-inl.h. For a new rule, add a struct here, its name in UpdateRule, its
// formulas, and the rows of src/update/optimizers.cc that use it.
#pragma once

#include <variant>

namespace lockstep {

// Weight decay wd has two forms: decoupled, w *= 1 - lr wd before the step; otherwise g += wd w.
// States are in the order of OptimizerArrays::states.
struct SgdRule {  // momentum_buffer, if momentum != 0 (first step: buf = g)
  double lr = 0, weight_decay = 0;
  bool decoupled_weight_decay = false;
  double momentum = 0, dampening = 0;
  bool nesterov = false;
};

struct AdamRule {  // exp_avg, exp_avg_sq, and with amsgrad max_exp_avg_sq
  double lr = 0, weight_decay = 0;
  bool decoupled_weight_decay = false;
  double beta1 = 0, beta2 = 0, eps = 0;  // bias corrections 1 - beta^step are formed in double
  bool amsgrad = false;
};

struct AdagradRule {  // sum
  double lr = 0, weight_decay = 0;
  bool decoupled_weight_decay = false;
  double lr_decay = 0, eps = 0;
};

struct RmspropRule {  // square_avg, grad_avg if centered, momentum_buffer if momentum != 0
  double lr = 0, weight_decay = 0;
  bool decoupled_weight_decay = false;
  double alpha = 0, eps = 0, momentum = 0;
  bool centered = false;
};

// Source: X. Chen et al. 2023, "Symbolic Discovery of Optimization Algorithms", algorithm 2.
struct LionRule {  // exp_avg
  double lr = 0, weight_decay = 0;
  bool decoupled_weight_decay = false;
  double beta1 = 0, beta2 = 0;
};

// The elementwise parts of rules that work on whole tensors (src/update/tensor_rules.h).
struct AverageRule {  // an average of gradients; dw is the direction, to be added to zeros
  double lr = 0, weight_decay = 0;
  bool decoupled_weight_decay = false;
  double momentum = 0;
  bool nesterov = false;
};
struct DirectionRule {  // no state; the gradient is the direction of the step
  double lr = 0, weight_decay = 0;
  bool decoupled_weight_decay = true;  // by lr, whatever the length
  double length = 0;                   // dw = -length g
};

using UpdateRule =
    std::variant<SgdRule, AdamRule, AdagradRule, RmspropRule, LionRule, AverageRule, DirectionRule>;

}  // namespace lockstep
