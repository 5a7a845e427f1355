// The update rules.
// A rule consists of its numbers, named as in torch.optim, and its formulas, written once over an
// arithmetic `in` that rounds each operation (see scalar/optimizer_loop.h) and the type V it
// computes in. With UnroundedArithmetic and double, the same formulas give the values that the
// roundings are compared with. For a new rule, add a struct here, its name in UpdateRule, and the
// rows of src/update/optimizers.cc that use it.
#pragma once

#include <cmath>
#include <cstdint>
#include <variant>

#include "emulation/kernels/args/optimizer_args.h"

namespace lockstep {

namespace update_rule {

// torch's lerp_(m, g, weight) starts from the nearer end.
template <typename In, typename V>
V lerp(const In& in, V m, V g, V weight) {
  constexpr double kHalf = 0.5;
  const V difference = in.inner_add(g, -m);
  if (weight < V(kHalf)) return in.add_product(m, weight, difference);
  return in.add_product(g, weight - V(1), difference);  // weight - 1 is exact here
}

// keep v + take g^2, as mul_ and addcmul_ form it.
template <typename In, typename V>
V average_square(const In& in, V v, V g, V keep, V take) {
  return in.add_product(in.round(v * keep), in.inner(take * g), g);
}

}  // namespace update_rule

// Weight decay wd has two forms: decoupled, w *= 1 - lr wd before the step; otherwise g += wd w.
// States are in the order of OptimizerArrays::states. Formulas<Value> has the constants in the
// arithmetic, and
//   state<K>(in, g, s)      the new state K; s: states, those below K new ones, the others old
//   change(in, g, old, s)   dw (without decoupled decay)
struct SgdRule {  // momentum_buffer, if momentum != 0 (first step: buf = g)
  double lr = 0, weight_decay = 0;
  bool decoupled_weight_decay = false;
  double momentum = 0, dampening = 0;
  bool nesterov = false;

  template <typename Value>
  class Formulas {
   public:
    static constexpr int kStates = 1;
    template <typename In>
    Formulas(const SgdRule& rule, int64_t step, const In& in)
        : minus_lr_(in.alpha(-rule.lr)),
          momentum_(in.constant(rule.momentum)),
          ahead_(in.alpha(rule.momentum)),
          take_(in.alpha(1 - rule.dampening)),
          has_momentum_(rule.momentum != 0),
          dampened_(rule.dampening != 0),
          first_(step == 1),
          nesterov_(rule.nesterov) {}

    template <int K, typename In, typename V>
    V state(const In& in, V g, const V* s) const {
      if (first_) return g;
      const V kept = in.round(V(momentum_) * s[0]);
      return dampened_ ? in.add_product(kept, V(take_), g) : in.add(kept, g);
    }
    template <typename In, typename V>
    V change(const In& in, V g, const V*, const V* s) const {
      if (!has_momentum_) return in.product(V(minus_lr_), g);
      const V direction = nesterov_ ? in.add_product(g, V(ahead_), s[0]) : s[0];
      return in.product(V(minus_lr_), direction);
    }

   private:
    Value minus_lr_, momentum_, ahead_, take_;
    bool has_momentum_, dampened_, first_, nesterov_;
  };
};

struct AdamRule {  // exp_avg, exp_avg_sq, and with amsgrad max_exp_avg_sq
  double lr = 0, weight_decay = 0;
  bool decoupled_weight_decay = false;
  double beta1 = 0, beta2 = 0, eps = 0;  // bias corrections 1 - beta^step are formed in double
  bool amsgrad = false;

  template <typename Value>
  class Formulas {
   public:
    static constexpr int kStates = 3;
    template <typename In>
    Formulas(const AdamRule& rule, int64_t step, const In& in)
        : minus_step_size_(in.constant(-rule.lr / (1 - integer_power(rule.beta1, step)))),
          root_correction_(in.constant(std::sqrt(1 - integer_power(rule.beta2, step)))),
          one_minus_beta1_(in.constant(1 - rule.beta1)),
          beta2_(in.constant(rule.beta2)),
          one_minus_beta2_(in.constant(1 - rule.beta2)),
          eps_(in.alpha(rule.eps)),
          amsgrad_(rule.amsgrad) {}

    template <int K, typename In, typename V>
    V state(const In& in, V g, const V* s) const {
      if constexpr (K == 0) return update_rule::lerp(in, s[0], g, V(one_minus_beta1_));
      if constexpr (K == 1)
        return update_rule::average_square(in, s[1], g, V(beta2_), V(one_minus_beta2_));
      return std::isnan(s[1]) || s[1] > s[2] ? s[1] : s[2];  // a NaN in either is kept
    }
    template <typename In, typename V>
    V change(const In& in, V, const V*, const V* s) const {
      const V root = in.round(std::sqrt(amsgrad_ ? s[2] : s[1]));
      const V denominator = in.add(in.round(root / V(root_correction_)), V(eps_));
      return in.inner(in.inner(V(minus_step_size_) * s[0]) / denominator);
    }

   private:
    Value minus_step_size_, root_correction_, one_minus_beta1_, beta2_, one_minus_beta2_, eps_;
    bool amsgrad_;
  };
};

struct AdagradRule {  // sum
  double lr = 0, weight_decay = 0;
  bool decoupled_weight_decay = false;
  double lr_decay = 0, eps = 0;

  template <typename Value>
  class Formulas {
   public:
    static constexpr int kStates = 1;
    template <typename In>
    Formulas(const AdagradRule& rule, int64_t step, const In& in)
        : minus_lr_(in.constant(-rule.lr / (1 + static_cast<double>(step - 1) * rule.lr_decay))),
          eps_(in.alpha(rule.eps)) {}

    template <int K, typename In, typename V>
    V state(const In& in, V g, const V* s) const {
      return in.add_product(s[0], g, g);
    }
    template <typename In, typename V>
    V change(const In& in, V g, const V*, const V* s) const {
      const V denominator = in.add(in.round(std::sqrt(s[0])), V(eps_));
      return in.inner(in.inner(V(minus_lr_) * g) / denominator);
    }

   private:
    Value minus_lr_, eps_;
  };
};

struct RmspropRule {  // square_avg, grad_avg if centered, momentum_buffer if momentum != 0
  double lr = 0, weight_decay = 0;
  bool decoupled_weight_decay = false;
  double alpha = 0, eps = 0, momentum = 0;
  bool centered = false;

  template <typename Value>
  class Formulas {
   public:
    static constexpr int kStates = 3;
    template <typename In>
    Formulas(const RmspropRule& rule, int64_t, const In& in)
        : minus_lr_(in.constant(-rule.lr)),
          minus_lr_of_buffer_(in.alpha(-rule.lr)),
          alpha_(in.constant(rule.alpha)),
          one_minus_alpha_(in.constant(1 - rule.alpha)),
          eps_(in.alpha(rule.eps)),
          momentum_(in.constant(rule.momentum)),
          centered_(rule.centered),
          buffer_(rule.momentum == 0 ? -1
                  : rule.centered    ? 2
                                     : 1) {}

    template <int K, typename In, typename V>
    V state(const In& in, V g, const V* s) const {
      if (K == 0) return update_rule::average_square(in, s[0], g, V(alpha_), V(one_minus_alpha_));
      if (K != buffer_) return update_rule::lerp(in, s[K], g, V(one_minus_alpha_));
      return in.add(in.round(s[K] * V(momentum_)), in.inner(g / denominator(in, s)));
    }
    template <typename In, typename V>
    V change(const In& in, V g, const V*, const V* s) const {
      if (buffer_ >= 0) return in.product(V(minus_lr_of_buffer_), s[buffer_]);
      return in.inner(in.inner(V(minus_lr_) * g) / denominator(in, s));
    }

   private:
    template <typename In, typename V>
    V denominator(const In& in, const V* s) const {
      const V square = centered_ ? in.add_product(s[0], -s[1], s[1]) : s[0];
      return in.add(in.round(std::sqrt(square)), V(eps_));
    }
    Value minus_lr_, minus_lr_of_buffer_, alpha_, one_minus_alpha_, eps_, momentum_;
    bool centered_;
    int buffer_;  // index of the momentum buffer, -1 without one
  };
};

// Source: X. Chen et al. 2023, "Symbolic Discovery of Optimization Algorithms", algorithm 2.
struct LionRule {  // exp_avg
  double lr = 0, weight_decay = 0;
  bool decoupled_weight_decay = false;
  double beta1 = 0, beta2 = 0;

  template <typename Value>
  class Formulas {
   public:
    static constexpr int kStates = 1;
    template <typename In>
    Formulas(const LionRule& rule, int64_t, const In& in)
        : minus_lr_(in.alpha(-rule.lr)),
          beta1_(in.constant(rule.beta1)),
          one_minus_beta1_(in.constant(1 - rule.beta1)),
          beta2_(in.constant(rule.beta2)),
          one_minus_beta2_(in.constant(1 - rule.beta2)) {}

    template <int K, typename In, typename V>
    V state(const In& in, V g, const V* s) const {
      return mix(in, s[0], g, V(beta2_), V(one_minus_beta2_));
    }
    template <typename In, typename V>
    V change(const In& in, V g, const V* old, const V*) const {
      const V c = mix(in, old[0], g, V(beta1_), V(one_minus_beta1_));
      if (c > 0) return V(minus_lr_);
      if (c < 0) return -V(minus_lr_);
      return c;  // zero gives no update, NaN is kept
    }

   private:
    template <typename In, typename V>
    static V mix(const In& in, V m, V g, V keep, V take) {
      return in.add(in.round(keep * m), in.round(take * g));
    }
    Value minus_lr_, beta1_, one_minus_beta1_, beta2_, one_minus_beta2_;
  };
};

using UpdateRule = std::variant<SgdRule, AdamRule, AdagradRule, RmspropRule, LionRule>;

}  // namespace lockstep
