// The formulas of the update rules. `in` rounds each operation; V is the type computed in: with
// UnroundedArithmetic and double the same formulas say what the roundings are measured by.
#include "emulation/kernels/scalar/optimizer.h"

#include <cmath>

#include "emulation/kernels/scalar/optimizer_loop.h"

namespace lockstep {
namespace {

// torch's lerp_(m, g, weight) goes from the end that is nearer.
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

template <typename Value>
class Sgd {
 public:
  static constexpr int kStates = 1;
  template <typename In>
  Sgd(const SgdRule& rule, int64_t step, const In& in)
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

template <typename Value>
class Adam {
 public:
  static constexpr int kStates = 3;
  template <typename In>
  Adam(const AdamRule& rule, int64_t step, const In& in)
      : minus_step_size_(in.constant(-rule.lr / (1 - integer_power(rule.beta1, step)))),
        root_correction_(in.constant(std::sqrt(1 - integer_power(rule.beta2, step)))),
        one_minus_beta1_(in.constant(1 - rule.beta1)),
        beta2_(in.constant(rule.beta2)),
        one_minus_beta2_(in.constant(1 - rule.beta2)),
        eps_(in.alpha(rule.eps)),
        amsgrad_(rule.amsgrad) {}

  template <int K, typename In, typename V>
  V state(const In& in, V g, const V* s) const {
    if constexpr (K == 0) return lerp(in, s[0], g, V(one_minus_beta1_));
    if constexpr (K == 1) return average_square(in, s[1], g, V(beta2_), V(one_minus_beta2_));
    return std::isnan(s[1]) || s[1] > s[2] ? s[1] : s[2];  // a NaN in either stays
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

template <typename Value>
class Adagrad {
 public:
  static constexpr int kStates = 1;
  template <typename In>
  Adagrad(const AdagradRule& rule, int64_t step, const In& in)
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

template <typename Value>
class Rmsprop {
 public:
  static constexpr int kStates = 3;
  template <typename In>
  Rmsprop(const RmspropRule& rule, int64_t, const In& in)
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
    if (K == 0) return average_square(in, s[0], g, V(alpha_), V(one_minus_alpha_));
    if (K != buffer_) return lerp(in, s[K], g, V(one_minus_alpha_));
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

// Source: X. Chen et al. 2023, "Symbolic Discovery of Optimization Algorithms", algorithm 2.
template <typename Value>
class Lion {
 public:
  static constexpr int kStates = 1;
  template <typename In>
  Lion(const LionRule& rule, int64_t, const In& in)
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
    return c;  // zero moves nothing, NaN stays
  }

 private:
  template <typename In, typename V>
  static V mix(const In& in, V m, V g, V keep, V take) {
    return in.add(in.round(keep * m), in.round(take * g));
  }
  Value minus_lr_, beta1_, one_minus_beta1_, beta2_, one_minus_beta2_;
};

template <typename T>
void run(const SgdRule& rule, const OptimizerArrays<T>& arrays, UpdateStats* stats) {
  optimizer_loop::run_optimizer<Sgd>(rule, arrays, stats);
}
template <typename T>
void run(const AdamRule& rule, const OptimizerArrays<T>& arrays, UpdateStats* stats) {
  optimizer_loop::run_optimizer<Adam>(rule, arrays, stats);
}
template <typename T>
void run(const AdagradRule& rule, const OptimizerArrays<T>& arrays, UpdateStats* stats) {
  optimizer_loop::run_optimizer<Adagrad>(rule, arrays, stats);
}
template <typename T>
void run(const RmspropRule& rule, const OptimizerArrays<T>& arrays, UpdateStats* stats) {
  optimizer_loop::run_optimizer<Rmsprop>(rule, arrays, stats);
}
template <typename T>
void run(const LionRule& rule, const OptimizerArrays<T>& arrays, UpdateStats* stats) {
  optimizer_loop::run_optimizer<Lion>(rule, arrays, stats);
}

}  // namespace

template <typename T>
void scalar_optimizer(const OptimizerRule& rule, const OptimizerArrays<T>& arrays,
                      UpdateStats* stats) {
  std::visit([&](const auto& known) { run(known, arrays, stats); }, rule);
}
template void scalar_optimizer(const OptimizerRule&, const OptimizerArrays<float>&, UpdateStats*);
template void scalar_optimizer(const OptimizerRule&, const OptimizerArrays<double>&, UpdateStats*);

}  // namespace lockstep
