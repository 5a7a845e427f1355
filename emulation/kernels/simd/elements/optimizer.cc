// Optimizers whose formats are all the container's own, 16 elements at a time: the virtual lanes of
// emulation/kernels/reduction.h.
#include "emulation/kernels/simd/elements/optimizer.h"

#include <algorithm>
#include <type_traits>
#include <variant>

#include "emulation/kernels/block_pass.h"
#include "emulation/kernels/scalar/elements/optimizer.h"
#include "emulation/kernels/simd/targets.h"
#include "emulation/kernels/update_blocks.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "emulation/kernels/simd/elements/optimizer.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "emulation/kernels/simd/rounding/narrow-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lockstep {
namespace HWY_NAMESPACE {
#if LOCKSTEP_SIMD_TARGET
namespace hn = hwy::HWY_NAMESPACE;

#include "emulation/kernels/optimizer_formulas-inl.h"

// A vector with the operators that the formulas use.
template <typename T>
struct Operand {
  using Tag = hn::ScalableTag<T>;
  using V = hn::Vec<Tag>;
  HWY_INLINE Operand() : v(hn::Zero(Tag())) {}
  HWY_INLINE explicit Operand(T x) : v(hn::Set(Tag(), x)) {}
  HWY_INLINE explicit Operand(V x) : v(x) {}
  V v;
};
template <typename T>
HWY_INLINE Operand<T> operator+(Operand<T> x, Operand<T> y) {
  return Operand<T>(hn::Add(x.v, y.v));
}
template <typename T>
HWY_INLINE Operand<T> operator*(Operand<T> x, Operand<T> y) {
  return Operand<T>(hn::Mul(x.v, y.v));
}
template <typename T>
HWY_INLINE Operand<T> operator/(Operand<T> x, Operand<T> y) {
  return Operand<T>(hn::Div(x.v, y.v));
}
template <typename T>
HWY_INLINE Operand<T> operator-(Operand<T> x) {
  return Operand<T>(hn::Neg(x.v));
}

// NativeArithmetic of scalar/elements/optimizer_loop.h, on vectors.
template <typename T>
struct VectorArithmetic {
  using V = Operand<T>;
  T constant(double x) const { return static_cast<T>(x); }
  T alpha(double x) const { return static_cast<T>(x); }
  HWY_INLINE V round(V x) const { return x; }
  HWY_INLINE V inner(V x) const { return x; }
  HWY_INLINE V add(V x, V y) const { return x + y; }
  HWY_INLINE V inner_add(V x, V y) const { return x + y; }
  HWY_INLINE V add_product(V x, V a, V b) const { return x + a * b; }
  HWY_INLINE V product(V a, V b) const { return a * b; }
  HWY_INLINE V sqrt(V x) const { return V(hn::Sqrt(x.v)); }
  HWY_INLINE V maximum(V x, V y) const {
    return V(hn::IfThenElse(hn::Or(hn::IsNaN(x.v), hn::Gt(x.v, y.v)), x.v, y.v));
  }
  HWY_INLINE V signed_by(V c, V x) const {
    const auto zero = hn::Zero(typename V::Tag());
    const auto or_negated = hn::IfThenElse(hn::Lt(c.v, zero), hn::Neg(x.v), c.v);
    return V(hn::IfThenElse(hn::Gt(c.v, zero), x.v, or_negated));
  }
};

// One step of one parameter by a rule; kCount: states in use.
template <typename Rule, typename T, int kCount>
class VectorOptimizer {
  using Tag = hn::ScalableTag<T>;
  using DoubleTag = hn::ScalableTag<double>;
  using DoubleVec = hn::Vec<DoubleTag>;
  using V = Operand<T>;
  static constexpr int kRow = kReductionLanes;
  static constexpr int kLanes = static_cast<int>(hn::MaxLanes(Tag()));
  static constexpr int kDoubles = static_cast<int>(hn::MaxLanes(DoubleTag()));
  static constexpr int kParts = kLanes / kDoubles;  // vectors of doubles that hold one vector
  static constexpr int kStates = Formulas<Rule, T>::kStates;

 public:
  VectorOptimizer(const Rule& rule, const OptimizerArrays<T>& arrays)
      : a_(arrays),
        formulas_(rule, arrays.step, in_),
        decay_weight_(rule.decoupled_weight_decay && rule.weight_decay != 0),
        decay_gradient_(!rule.decoupled_weight_decay && rule.weight_decay != 0),
        decay_(in_.alpha(rule.weight_decay)),
        keep_(in_.constant(1 - rule.lr * rule.weight_decay)) {}

  // Elements begin..begin + n - 1, n <= kReductionBlock.
  template <bool kSums>
  HWY_NOINLINE BlockUpdate run(int64_t begin, int64_t n) const {
    const DoubleTag d;
    DoubleVec squares[3][kRow / kDoubles];  // of updates, weights, stagnant updates
    for (auto& sums : squares) std::fill(std::begin(sums), std::end(sums), hn::Zero(d));
    BlockUpdate block;
    int64_t i = 0;
    for (; i + kRow <= n; i += kRow) {
      const Effects effects = step_row<kSums>(at(begin + i));
      if constexpr (!kSums) continue;
      for (int p = 0; p < kRow / kDoubles; ++p) {
        const DoubleVec dw = effects.dw[p], w = effects.before[p];
        const auto still = hn::Eq(effects.after[p], w);
        const DoubleVec square = hn::Mul(dw, dw);
        squares[0][p] = hn::Add(squares[0][p], square);
        squares[1][p] = hn::Add(squares[1][p], hn::Mul(w, w));
        squares[2][p] = hn::Add(squares[2][p], hn::IfThenElseZero(still, square));
        block.stagnant += hn::CountTrue(d, hn::And(still, hn::Ne(dw, hn::Zero(d))));
      }
    }
    VirtualLanes sums[3];
    for (int s = 0; s < 3; ++s) {
      for (int p = 0; p < kRow / kDoubles; ++p) {
        hn::StoreU(squares[s][p], d, sums[s].lane + p * kDoubles);
      }
    }
    if (i < n) step_rest<kSums>(begin + i, static_cast<int>(n - i), sums, block);
    block.update_sq = sums[0].join();
    block.weight_sq = sums[1].join();
    block.stagnant_sq = sums[2].join();
    return block;
  }

 private:
  struct Row {  // of kRow elements
    T* weight;
    const T* grad;
    T* states[kMaxOptimizerStates];
    T* update;  // may be null
  };
  struct Effects {
    DoubleVec dw[kRow / kDoubles], before[kRow / kDoubles], after[kRow / kDoubles];
  };

  Row at(int64_t i) const {
    Row row{a_.weight + i, a_.grad + i, {}, a_.update == nullptr ? nullptr : a_.update + i};
    for (int k = 0; k < kCount; ++k) row.states[k] = a_.states[static_cast<size_t>(k)] + i;
    return row;
  }

  template <bool kSums>
  HWY_INLINE Effects step_row(const Row& row) const {
    const Tag d;
    Effects effects;
    for (int v = 0; v < kRow / kLanes; ++v) {
      const int at = v * kLanes;
      V s[kStates], old[kStates];
      for (int k = 0; k < kCount; ++k) s[k] = old[k] = V(hn::LoadU(d, row.states[k] + at));
      const V w(hn::LoadU(d, row.weight + at));
      V g(hn::LoadU(d, row.grad + at));
      const V base = decay_weight_ ? V(keep_) * w : w;
      if (decay_gradient_) g = g + V(decay_) * w;
      form_states<0>(g, s);
      for (int k = 0; k < kCount; ++k) hn::StoreU(s[k].v, d, row.states[k] + at);
      const V delta = formulas_.change(in_, g, old, s);
      const V sum(canonical(d, (base + delta).v));
      hn::StoreU(sum.v, d, row.weight + at);
      if (!kSums && row.update == nullptr) continue;
      for (int p = 0; p < kParts; ++p) {
        const DoubleTag dd;
        const int to = v * kParts + p;
        const DoubleVec before = part(w, p), from = part(base, p), change = part(delta, p);
        const DoubleVec dw =
            hn::IfThenElse(hn::Eq(from, before), change, hn::Add(hn::Sub(from, before), change));
        effects.dw[to] = dw;
        effects.before[to] = before;
        effects.after[to] = part(sum, p);
        if (row.update != nullptr) store_update(canonical(dd, dw), row.update + to * kDoubles);
      }
    }
    return effects;
  }

  template <int K>
  HWY_INLINE void form_states(V g, V* s) const {
    if constexpr (K < kCount) {
      s[K] = V(canonical(Tag(), formulas_.template state<K>(in_, g, s).v));
      form_states<K + 1>(g, s);
    }
  }

  static HWY_INLINE DoubleVec part(V x, int p) {
    if constexpr (std::is_same_v<T, double>) {
      return x.v;
    } else {
      const hn::Half<Tag> half;
      const auto floats = p == 0 ? hn::LowerHalf(half, x.v) : hn::UpperHalf(half, x.v);
      return hn::PromoteTo(DoubleTag(), floats);
    }
  }
  static HWY_INLINE void store_update(DoubleVec dw, T* to) {
    if constexpr (std::is_same_v<T, double>) {
      hn::StoreU(dw, DoubleTag(), to);
    } else {
      const hn::Half<Tag> half;
      hn::StoreU(hn::DemoteTo(half, dw), half, to);
    }
  }

  // The last 1 to 15 elements, in a padded copy.
  template <bool kSums>
  HWY_INLINE void step_rest(int64_t first, int n, VirtualLanes* sums, BlockUpdate& block) const {
    T weight[kRow] = {}, grad[kRow] = {}, states[kMaxOptimizerStates][kRow] = {}, update[kRow];
    const Row from = at(first);
    std::copy_n(from.weight, n, weight);
    std::copy_n(from.grad, n, grad);
    for (int k = 0; k < kCount; ++k) std::copy_n(from.states[k], n, states[k]);
    const Effects effects = step_row<kSums>({weight,
                                             grad,
                                             {states[0], states[1], states[2]},
                                             from.update == nullptr ? nullptr : update});
    std::copy_n(weight, n, from.weight);
    for (int k = 0; k < kCount; ++k) std::copy_n(states[k], n, from.states[k]);
    if (from.update != nullptr) std::copy_n(update, n, from.update);
    if constexpr (!kSums) return;
    double dw[kRow], before[kRow], after[kRow];
    for (int p = 0; p < kRow / kDoubles; ++p) {
      const DoubleTag d;
      hn::StoreU(effects.dw[p], d, dw + p * kDoubles);
      hn::StoreU(effects.before[p], d, before + p * kDoubles);
      hn::StoreU(effects.after[p], d, after + p * kDoubles);
    }
    for (int l = 0; l < n; ++l) {
      sums[0].lane[l] += dw[l] * dw[l];
      sums[1].lane[l] += before[l] * before[l];
      if (after[l] != before[l]) continue;
      sums[2].lane[l] += dw[l] * dw[l];
      if (dw[l] != 0) ++block.stagnant;
    }
  }

  const OptimizerArrays<T>& a_;
  VectorArithmetic<T> in_;
  Formulas<Rule, T> formulas_;
  bool decay_weight_, decay_gradient_;
  T decay_, keep_;
};

struct VectorRules {
  template <int kCount = 0, typename Rule, typename T>
  static void run(const Rule& rule, const OptimizerArrays<T>& arrays, UpdateStats* stats) {
    if constexpr (kCount < Formulas<Rule, T>::kStates) {
      if (arrays.state_count > kCount) return run<kCount + 1>(rule, arrays, stats);
    }
    const VectorOptimizer<Rule, T, kCount> optimizer(rule, arrays);
    update_blocks(arrays.count, stats, [&](int64_t begin, int64_t n) {
      return stats == nullptr ? optimizer.template run<false>(begin, n)
                              : optimizer.template run<true>(begin, n);
    });
  }
};

#endif  // LOCKSTEP_SIMD_TARGET
}  // namespace HWY_NAMESPACE
}  // namespace lockstep
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lockstep {
namespace {

// Whether keeping a value is one conversion to the container's type.
template <typename T>
bool is_plain(const OptimizerArrays<T>& arrays) {
  const OptimizerFormats& f = arrays.formats;
  return is_native<T>(*f.arithmetic) && is_native<T>(*f.state) && is_native<T>(*f.weight) &&
         f.rounding == Rounding::kNearestEven && f.state_rounding == Rounding::kNearestEven &&
         arrays.compensation == nullptr && !measures(arrays.measured);
}

template <class VectorRules, typename T>
void optimizer(const UpdateRule& rule, const OptimizerArrays<T>& arrays, UpdateStats* stats) {
  if (!is_plain(arrays)) return scalar_optimizer(rule, arrays, stats);
  std::visit([&](const auto& numbers) { VectorRules::run(numbers, arrays, stats); }, rule);
}

template <class VectorRules>
void use_vectors(KernelSet& set) {
  set.f32.optimizer = optimizer<VectorRules, float>;
  set.f64.optimizer = optimizer<VectorRules, double>;
}

}  // namespace

void use_simd_optimizer(KernelSet& set, SimdTarget target) {
  if (target == SimdTarget::kAvx2) {
    use_vectors<N_AVX2::VectorRules>(set);
  } else {
    use_vectors<N_AVX3::VectorRules>(set);
  }
}

}  // namespace lockstep
#endif  // HWY_ONCE
