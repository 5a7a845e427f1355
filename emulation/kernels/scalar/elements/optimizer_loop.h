// The loop that all optimizers share: weight decay, states, update, the weight's rounding, and
// their statistics. An update rule supplies only the formulas (optimizer_formulas-inl.h).
//
//   1. g = grad (+ wd w)           2. each state in turn, from g and the states before it, rounded
//   3. dw from g and the states    4. w' = round(w + dw), or with Kahan's compensation
#pragma once

#include <cmath>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "emulation/accumulator/fast_round.h"
#include "emulation/format/rounding.h"
#include "emulation/kernels/args/optimizer_args.h"
#include "emulation/kernels/block_pass.h"
#include "emulation/kernels/optimizer_rules.h"
#include "emulation/kernels/reduction.h"
#include "emulation/kernels/scalar/rounding/nearest_round.h"
#include "emulation/kernels/update_blocks.h"

namespace lockstep::optimizer_loop {

#include "emulation/kernels/optimizer_formulas-inl.h"

using Rounder = NearestRound;

// An arithmetic defines each operation. The formulas use torch's ops:
//   constant(c), alpha(c)   a scalar, and that of an add: its alpha, or the number it adds
//   round(x), add(x, y)     the end of an op, and an op that adds
//   inner(x), inner_add(x, y)   an operation inside an op
//   add_product(x, a, b)    an op x + a b
//   product(a, b)           a b inside the op that adds it to the weight
//   sqrt(x), maximum(x, y)  not rounded; a NaN in either is kept
//   signed_by(c, x)         x, -x or c, as c > 0, c < 0, or neither: zero or NaN

struct Choices {
  template <typename V>
  static V sqrt(V x) {
    return std::sqrt(x);
  }
  template <typename V>
  static V maximum(V x, V y) {
    return std::isnan(x) || x > y ? x : y;
  }
  template <typename V>
  static V signed_by(V c, V x) {
    return c > 0 ? x : c < 0 ? -x : c;
  }
};

// Operations in the container's own type.
template <typename T>
struct NativeArithmetic : Choices {
  using Value = T;
  explicit NativeArithmetic(const OptimizerFormats&) {}
  Value constant(double x) const { return static_cast<T>(x); }
  Value alpha(double x) const { return static_cast<T>(x); }
  Value round(Value x) const { return x; }
  Value inner(Value x) const { return x; }
  Value add(Value x, Value y) const { return x + y; }
  Value inner_add(Value x, Value y) const { return x + y; }
  Value add_product(Value x, Value a, Value b) const { return x + a * b; }
  Value product(Value a, Value b) const { return a * b; }
};
// Operations in double, each rounded to a narrower format.
struct RoundedArithmetic : Choices {
  using Value = double;
  explicit RoundedArithmetic(const OptimizerFormats& formats) : rounder(*formats.arithmetic) {}
  Value constant(double x) const { return rounder(x); }
  Value alpha(double x) const { return rounder(x); }
  Value round(Value x) const { return rounder(x); }
  Value inner(Value x) const { return rounder(x); }
  Value add(Value x, Value y) const { return rounder(fast_add_to_odd(x, y)); }
  Value inner_add(Value x, Value y) const { return add(x, y); }
  Value add_product(Value x, Value a, Value b) const { return add(x, rounder(a * b)); }
  Value product(Value a, Value b) const { return rounder(a * b); }
  Rounder rounder;
};
// FP32 inside a torch op, one rounding at its end. A product of two FP32 numbers is exact in
// double, and one double operation on FP32 numbers rounds to FP32 as if it were done there (53 >=
// 2 * 24 + 2 bits).
struct TorchArithmetic : Choices {
  using Value = double;
  explicit TorchArithmetic(const OptimizerFormats& formats)
      : rounder(*formats.arithmetic), is_cpu(formats.steps == OptimizerSteps::kTorchCpu) {}
  Value constant(double x) const { return inner(x); }
  Value alpha(double x) const { return is_cpu ? round(x) : inner(x); }
  Value round(Value x) const { return rounder(inner(x)); }
  Value inner(Value x) const { return static_cast<float>(x); }
  Value add(Value x, Value y) const { return round(x + y); }
  Value inner_add(Value x, Value y) const { return inner(x + y); }
  Value add_product(Value x, Value a, Value b) const { return round(fast_add_to_odd(x, a * b)); }
  Value product(Value a, Value b) const { return a * b; }
  Rounder rounder;
  bool is_cpu;
};
// Operations in double without any rounding of their own: the others are measured against them.
struct UnroundedArithmetic : Choices {
  double round(double x) const { return x; }
  double inner(double x) const { return x; }
  double add(double x, double y) const { return x + y; }
  double inner_add(double x, double y) const { return x + y; }
  double add_product(double x, double a, double b) const { return x + a * b; }
  double product(double a, double b) const { return a * b; }
};

// Writes back: states and weights rounded to their formats.
template <typename T>
class Storage {
 public:
  explicit Storage(const OptimizerFormats& formats)
      : formats_(formats),
        state_(*formats.state),
        weight_(*formats.weight),
        native_state_(is_native<T>(*formats.state)),
        native_weight_(is_native<T>(*formats.weight)) {}

  T state(double x, int k, int64_t index) const {
    if (native_state_) return canonical_nan(static_cast<T>(x));
    return rounded(x, state_, *formats_.state, formats_.state_rounding, formats_.state_keys[k],
                   index);
  }
  // The part that Kahan's sum lost.
  T compensation(double x) const {
    if (native_weight_) return canonical_nan(static_cast<T>(x));
    return canonical_nan(static_cast<T>(weight_(x)));
  }
  // The new weight. In the container's own format: one float (or double) addition. In any other
  // format: the exact sum rounded once, or with torch's steps its FP32 sum.
  T weight(double base, double delta, int64_t index) const {
    if (native_weight_ && formats_.rounding == Rounding::kNearestEven) {
      return canonical_nan(static_cast<T>(base + delta));
    }
    double sum = fast_add_to_odd(base, delta);
    if (formats_.steps != OptimizerSteps::kElementary) sum = static_cast<float>(sum);
    return rounded(sum, weight_, *formats_.weight, formats_.rounding, formats_.key, index);
  }

 private:
  static T rounded(double x, const Rounder& nearest, const Format& format, Rounding rounding,
                   const StochasticKey& key, int64_t index) {
    if (rounding == Rounding::kNearestEven) return canonical_nan(static_cast<T>(nearest(x)));
    const uint32_t random =
        rounding == Rounding::kStochastic ? stochastic_bits(key, static_cast<uint64_t>(index)) : 0;
    return canonical_nan(static_cast<T>(round_to_format(x, format, rounding, random)));
  }

  const OptimizerFormats& formats_;
  Rounder state_, weight_;
  bool native_state_, native_weight_;
};

// Statistics of one array that is written element by element, if requested: those of quantize, with
// the same sums in the same shape. One thread adds the elements of a block, in their order. With
// kMeasured false, none are requested, and the loops are compiled without them.
template <bool kMeasured>
class Measurement {
 public:
  Measurement(TensorStats* result, const Format& format, int64_t count)
      : result_(result),
        limits_(format),
        blocks_(result == nullptr
                    ? 0
                    : static_cast<size_t>((count + kReductionBlock - 1) / kReductionBlock)) {}
  Measurement(const Measurement&) = delete;
  Measurement& operator=(const Measurement&) = delete;

  bool wanted() const { return kMeasured && result_ != nullptr; }
  template <typename T>
  void add(int64_t index, double before, T after) {
    Block& block = blocks_[static_cast<size_t>(index / kReductionBlock)];
    const int64_t lane = index % kReductionLanes;
    measure_element(before, after, static_cast<uint64_t>(index), limits_, block.stats,
                    block.squares.lane[lane], block.errors.lane[lane]);
  }
  void finish() {
    if (!wanted()) return;
    *result_ = TensorStats();
    std::vector<double> squares, errors;
    for (const Block& block : blocks_) {
      result_->merge(block.stats);
      squares.push_back(block.squares.join());
      errors.push_back(block.errors.join());
    }
    const auto plus = [](double x, double y) { return x + y; };
    result_->sum_sq = join_blocks(std::move(squares), plus);
    result_->round_err_sq = join_blocks(std::move(errors), plus);
  }

 private:
  struct Block {
    TensorStats stats;
    VirtualLanes squares, errors;
  };
  TensorStats* result_;
  StatsLimits limits_;
  std::vector<Block> blocks_;
};

// One step of one parameter.
template <bool kMeasured, typename T, typename Arithmetic, typename Rule>
class OptimizerLoop {
  using Value = typename Arithmetic::Value;
  static constexpr int kStates = Formulas<Rule, Value>::kStates;

 public:
  OptimizerLoop(const Rule& rule, const OptimizerArrays<T>& arrays)
      : a_(arrays),
        arithmetic_(arrays.formats),
        storage_(arrays.formats),
        formulas_(rule, arrays.step, arithmetic_),
        decay_weight_(rule.decoupled_weight_decay && rule.weight_decay != 0),
        decay_gradient_(!rule.decoupled_weight_decay && rule.weight_decay != 0),
        decay_(arithmetic_.alpha(rule.weight_decay)),
        keep_(arithmetic_.constant(1 - rule.lr * rule.weight_decay)),
        of_weight_(arrays.measured.weight, *arrays.formats.weight, arrays.count),
        of_update_(arrays.measured.update, *arrays.formats.arithmetic, arrays.count) {
    for (int k = 0; k < kStates; ++k) {
      of_states_[k].emplace(arrays.measured.states[k], *arrays.formats.state, arrays.count);
    }
  }

  void run(UpdateStats* stats) {
    update_blocks(a_.count, stats, [&](int64_t begin, int64_t n) {
      double dw[kReductionBlock], before[kReductionBlock];
      BlockUpdate block;
      for (int64_t j = 0; j < n; ++j) block.stagnant += step(begin + j, dw[j], before[j]);
      if (stats == nullptr) return block;
      const auto plus = [](double x, double y) { return x + y; };
      block.update_sq = reduce_fixed<double>(
          n, [&](int64_t j) { return dw[j] * dw[j]; }, plus);
      block.weight_sq = reduce_fixed<double>(
          n, [&](int64_t j) { return before[j] * before[j]; }, plus);
      block.stagnant_sq = reduce_fixed<double>(
          n,
          [&](int64_t j) {
            return static_cast<double>(a_.weight[begin + j]) == before[j] ? dw[j] * dw[j] : 0;
          },
          plus);
      return block;
    });
    of_weight_.finish();
    of_update_.finish();
    for (auto& of_state : of_states_) {
      if (of_state) of_state->finish();
    }
  }

 private:
  template <typename V, typename In>
  V gradient(const In& in, int64_t i) const {
    const V g = V(a_.grad[i]);
    return decay_gradient_ ? in.add_product(g, V(decay_), V(a_.weight[i])) : g;
  }

  template <int K>
  void advance(int64_t i, Value g, double exact_g, Value* s, double* exact_s) {
    if constexpr (K < kStates) {
      if (K >= a_.state_count) return;
      const T kept = storage_.state(formulas_.template state<K>(arithmetic_, g, s), K, i);
      if (of_states_[K]->wanted()) {
        of_states_[K]->add(i, formulas_.template state<K>(UnroundedArithmetic(), exact_g, exact_s),
                           kept);
      }
      s[K] = a_.states[K][i] = kept;
      if (kMeasured) exact_s[K] = kept;
      advance<K + 1>(i, g, exact_g, s, exact_s);
    }
  }

  // Returns whether the weight did not change although the update is not zero.
  bool step(int64_t i, double& dw, double& before) {
    constexpr int kRoom = kStates;
    Value s[kRoom], old[kRoom];
    double exact_s[kRoom], exact_old[kRoom];
    for (int k = 0; k < kStates; ++k) {
      s[k] = old[k] = k < a_.state_count ? Value(a_.states[k][i]) : Value(0);
      if (kMeasured) exact_s[k] = exact_old[k] = static_cast<double>(s[k]);
    }
    const double w = a_.weight[i];
    const double base = decay_weight_ ? arithmetic_.round(keep_ * Value(a_.weight[i])) : w;
    const Value g = gradient<Value>(arithmetic_, i);
    const double exact_g = kMeasured ? gradient<double>(UnroundedArithmetic(), i) : 0;
    advance<0>(i, g, exact_g, s, exact_s);
    const double delta = formulas_.change(arithmetic_, g, old, s);
    before = w;
    dw = base == w ? delta : (base - w) + delta;
    if (a_.update != nullptr) a_.update[i] = canonical_nan(static_cast<T>(dw));
    if (of_update_.wanted()) {
      const double exact_base = decay_weight_ ? double(keep_) * w : w;
      const double exact = formulas_.change(UnroundedArithmetic(), exact_g, exact_old, exact_s);
      of_update_.add(i, exact_base == w ? exact : (exact_base - w) + exact, a_.update[i]);
    }
    double sum = base + delta;
    if (a_.compensation == nullptr) {
      a_.weight[i] = storage_.weight(base, delta, i);
    } else {
      const double y = arithmetic_.add(arithmetic_.round(Value(dw)), -Value(a_.compensation[i]));
      sum = w + y;
      a_.weight[i] = storage_.weight(w, y, i);
      a_.compensation[i] = storage_.compensation((double(a_.weight[i]) - w) - y);
    }
    if (of_weight_.wanted()) of_weight_.add(i, sum, a_.weight[i]);
    return dw != 0 && a_.weight[i] == static_cast<T>(w);
  }

  const OptimizerArrays<T>& a_;
  Arithmetic arithmetic_;
  Storage<T> storage_;
  Formulas<Rule, Value> formulas_;
  bool decay_weight_, decay_gradient_;
  Value decay_, keep_;
  Measurement<kMeasured> of_weight_, of_update_;
  std::optional<Measurement<kMeasured>> of_states_[kMaxOptimizerStates];
};

template <typename T, typename Rule>
void run_optimizer(const Rule& rule, const OptimizerArrays<T>& arrays, UpdateStats* stats) {
  if (!is_native<T>(*arrays.formats.arithmetic)) {
    if (arrays.formats.steps == OptimizerSteps::kElementary) {
      OptimizerLoop<true, T, RoundedArithmetic, Rule>(rule, arrays).run(stats);
    } else {
      OptimizerLoop<true, T, TorchArithmetic, Rule>(rule, arrays).run(stats);
    }
  } else if (measures(arrays.measured)) {
    OptimizerLoop<true, T, NativeArithmetic<T>, Rule>(rule, arrays).run(stats);
  } else {
    OptimizerLoop<false, T, NativeArithmetic<T>, Rule>(rule, arrays).run(stats);
  }
}

}  // namespace lockstep::optimizer_loop
