// The formulas of the update rules, written once over the type V of the operands and an arithmetic
// `in` that rounds each operation (scalar/elements/optimizer_loop.h). Included without a guard,
// inside the namespace of a loop: in vector code each instruction set compiles its own.
//
// Formulas<Rule, Value> has a rule's constants, rounded by the arithmetic, and
//   state<K>(in, g, s)      the new state K; s: states, those below K new ones, the others old
//   change(in, g, old, s)   dw (without decoupled decay)
// With UnroundedArithmetic and double, the same formulas give the values that the roundings are
// compared with.

template <typename Rule, typename Value>
class Formulas;

// torch's lerp_(m, g, weight) starts from the nearer end.
template <typename In, typename V, typename Value>
V lerp(const In& in, V m, V g, Value weight) {
  constexpr double kHalf = 0.5;
  const V difference = in.inner_add(g, -m);
  if (weight < Value(kHalf)) return in.add_product(m, V(weight), difference);
  return in.add_product(g, V(weight - Value(1)), difference);  // weight - 1 is exact here
}

// keep v + take g^2, as mul_ and addcmul_ form it.
template <typename In, typename V>
V average_square(const In& in, V v, V g, V keep, V take) {
  return in.add_product(in.round(v * keep), in.inner(take * g), g);
}

template <typename Value>
class Formulas<SgdRule, Value> {
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

template <typename Value>
class Formulas<AdamRule, Value> {
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
    if constexpr (K == 0) return lerp(in, s[0], g, one_minus_beta1_);
    if constexpr (K == 1) return average_square(in, s[1], g, V(beta2_), V(one_minus_beta2_));
    return in.maximum(s[1], s[2]);
  }
  template <typename In, typename V>
  V change(const In& in, V, const V*, const V* s) const {
    const V root = in.round(in.sqrt(amsgrad_ ? s[2] : s[1]));
    const V denominator = in.add(in.round(root / V(root_correction_)), V(eps_));
    return in.inner(in.inner(V(minus_step_size_) * s[0]) / denominator);
  }

 private:
  Value minus_step_size_, root_correction_, one_minus_beta1_, beta2_, one_minus_beta2_, eps_;
  bool amsgrad_;
};

template <typename Value>
class Formulas<AdagradRule, Value> {
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
    const V denominator = in.add(in.round(in.sqrt(s[0])), V(eps_));
    return in.inner(in.inner(V(minus_lr_) * g) / denominator);
  }

 private:
  Value minus_lr_, eps_;
};

template <typename Value>
class Formulas<RmspropRule, Value> {
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
    if (K == 0) return average_square(in, s[0], g, V(alpha_), V(one_minus_alpha_));
    if (K != buffer_) return lerp(in, s[K], g, one_minus_alpha_);
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
    return in.add(in.round(in.sqrt(square)), V(eps_));
  }
  Value minus_lr_, minus_lr_of_buffer_, alpha_, one_minus_alpha_, eps_, momentum_;
  bool centered_;
  int buffer_;  // index of the momentum buffer, -1 without one
};

template <typename Value>
class Formulas<LionRule, Value> {
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
    return in.signed_by(c, V(minus_lr_));
  }

 private:
  template <typename In, typename V>
  static V mix(const In& in, V m, V g, V keep, V take) {
    return in.add(in.round(keep * m), in.round(take * g));
  }
  Value minus_lr_, beta1_, one_minus_beta1_, beta2_, one_minus_beta2_;
};

template <typename Value>
class Formulas<AverageRule, Value> {
 public:
  static constexpr int kStates = 1;
  template <typename In>
  Formulas(const AverageRule& rule, int64_t, const In& in)
      : momentum_(in.constant(rule.momentum)),
        one_minus_momentum_(in.constant(1 - rule.momentum)),
        nesterov_(rule.nesterov) {}

  template <int K, typename In, typename V>
  V state(const In& in, V g, const V* s) const {
    return lerp(in, s[0], g, one_minus_momentum_);
  }
  template <typename In, typename V>
  V change(const In& in, V g, const V*, const V* s) const {
    return nesterov_ ? lerp(in, g, s[0], momentum_) : s[0];
  }

 private:
  Value momentum_, one_minus_momentum_;
  bool nesterov_;
};

template <typename Value>
class Formulas<DirectionRule, Value> {
 public:
  static constexpr int kStates = 1;  // arrays need one element; the rule has none
  template <typename In>
  Formulas(const DirectionRule& rule, int64_t, const In& in)
      : minus_length_(in.alpha(-rule.length)) {}

  template <int K, typename In, typename V>
  V state(const In&, V, const V* s) const {
    return s[0];
  }
  template <typename In, typename V>
  V change(const In& in, V g, const V*, const V*) const {
    return in.product(V(minus_length_), g);
  }

 private:
  Value minus_length_;
};
