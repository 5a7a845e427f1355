// The loop that all optimizers share: weight decay, states, update, the weight's rounding, and
// their statistics. An update rule supplies only the formulas
// (optimizer_rules.h).
//
//   1. g = grad (+ wd w)           2. each state in turn, from g and the states before it, rounded
//   3. dw from g and the states    4. w' = round(w + dw), or with Kahan's compensation
#pragma once

#include <algorithm>
#include <cmath>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "emulation/accumulator/fast_round.h"
#include "emulation/format/rounding.h"
#include "emulation/kernels/args/optimizer_args.h"
#include "emulation/kernels/block_pass.h"
#include "emulation/kernels/reduction.h"
#include "emulation/kernels/scalar/nearest_round.h"
#include "src/core/parallel.h"

namespace lockstep::optimizer_loop {

using Rounder = NearestRound;

// An arithmetic defines each operation. The formulas use torch's ops:
//   constant(c), alpha(c)   a scalar, and that of an add: its alpha, or the number it adds
//   round(x), add(x, y)     the end of an op, and an op that adds
//   inner(x), inner_add(x, y)   an operation inside an op
//   add_product(x, a, b)    an op x + a b
//   product(a, b)           a b inside the op that adds it to the weight

// Operations in the container's own type.
template <typename T>
struct NativeArithmetic {
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
struct RoundedArithmetic {
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
struct TorchArithmetic {
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
struct UnroundedArithmetic {
  double round(double x) const { return x; }
  double inner(double x) const { return x; }
  double add(double x, double y) const { return x + y; }
  double inner_add(double x, double y) const { return x + y; }
  double add_product(double x, double a, double b) const { return x + a * b; }
  double product(double a, double b) const { return a * b; }
};

template <typename T>
bool is_native(const Format& format) {
  return std::is_same_v<T, float> ? format.is_fp32() : format.is_fp64();
}

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
  // Whether keeping a value is one conversion to the container's type.
  bool is_plain() const {
    return native_state_ && native_weight_ && formats_.rounding == Rounding::kNearestEven &&
           formats_.state_rounding == Rounding::kNearestEven;
  }
  // The part that Kahan's sum lost.
  T compensation(double x) const {
    if (native_weight_) return canonical_nan(static_cast<T>(x));
    return canonical_nan(static_cast<T>(weight_(x)));
  }
  // Of the container's own format: one float (or double) addition. Any other format: the exact sum
  // rounded once, or with torch's steps its FP32 sum.
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

// One step of one parameter, by the formulas of a rule (optimizer_rules.h).
template <bool kMeasured, typename T, typename Arithmetic, template <typename> typename Formulas,
          typename Numbers>
class OptimizerLoop {
  using Value = typename Arithmetic::Value;
  static constexpr int kStates = Formulas<Value>::kStates;
  static constexpr bool kPlain = !kMeasured && std::is_same_v<Value, T>;

 public:
  OptimizerLoop(const Numbers& rule, const OptimizerArrays<T>& arrays)
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
    const int64_t blocks = (a_.count + kReductionBlock - 1) / kReductionBlock;
    std::vector<double> update_sq(static_cast<size_t>(blocks)), weight_sq(update_sq),
        stagnant_sq(update_sq);
    std::vector<uint64_t> stagnant(static_cast<size_t>(blocks));
    const auto plus = [](double x, double y) { return x + y; };
    parallel_for(blocks, [&](int64_t block) {
      const int64_t begin = block * kReductionBlock;
      const int64_t n = std::min(kReductionBlock, a_.count - begin);
      double dw[kReductionBlock], before[kReductionBlock];
      uint64_t still = 0;
      if (kPlain && storage_.is_plain() && a_.compensation == nullptr) {
        still = plain_steps<0>(begin, n, dw, before);
        if (stats == nullptr) return;
      } else {
        for (int64_t j = 0; j < n; ++j) still += step(begin + j, dw[j], before[j]);
      }
      const size_t b = static_cast<size_t>(block);
      stagnant[b] = still;
      update_sq[b] = reduce_fixed<double>(
          n, [&](int64_t j) { return dw[j] * dw[j]; }, plus);
      weight_sq[b] = reduce_fixed<double>(
          n, [&](int64_t j) { return before[j] * before[j]; }, plus);
      stagnant_sq[b] = reduce_fixed<double>(
          n,
          [&](int64_t j) {
            return static_cast<double>(a_.weight[begin + j]) == before[j] ? dw[j] * dw[j] : 0;
          },
          plus);
    });
    of_weight_.finish();
    of_update_.finish();
    for (auto& of_state : of_states_) {
      if (of_state) of_state->finish();
    }
    if (stats == nullptr) return;
    *stats = UpdateStats{};
    for (const uint64_t still : stagnant) stats->stagnant += still;
    stats->count = static_cast<uint64_t>(a_.count);
    stats->update_sq = join_blocks(std::move(update_sq), plus);
    stats->weight_sq = join_blocks(std::move(weight_sq), plus);
    stats->stagnant_sq = join_blocks(std::move(stagnant_sq), plus);
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

  // step() for elements begin..begin + n - 1 where every format is the container's own. Same
  // operations, in a loop without branches on formats, so that compilers vectorise it. kCount:
  // states in use. Requires: storage_.is_plain(), no compensation.
  template <int kCount>
  uint64_t plain_steps(int64_t begin, int64_t n, double* dw, double* before) {
    if constexpr (kPlain && kCount < kStates) {
      if (a_.state_count > kCount) return plain_steps<kCount + 1>(begin, n, dw, before);
    }
    uint64_t still = 0;
    if constexpr (kPlain) {
      const Formulas<Value> formulas = formulas_;  // local: no store can change it
      const Arithmetic in = arithmetic_;
      const T decay = decay_, keep = keep_;
      const bool decay_weight = decay_weight_, decay_gradient = decay_gradient_;
      T* __restrict weight = a_.weight + begin;
      const T* __restrict grad = a_.grad + begin;
      T* __restrict states[kStates];
      for (int k = 0; k < kCount; ++k) states[k] = a_.states[k] + begin;
      T* __restrict update = a_.update == nullptr ? nullptr : a_.update + begin;
      for (int64_t j = 0; j < n; ++j) {
        T s[kStates] = {}, old[kStates] = {};
        for (int k = 0; k < kCount; ++k) s[k] = old[k] = states[k][j];
        const T w = weight[j];
        const T base = decay_weight ? keep * w : w;
        const T g = decay_gradient ? grad[j] + decay * w : grad[j];
        plain_states<0, kCount>(formulas, in, g, s);
        for (int k = 0; k < kCount; ++k) states[k][j] = s[k];
        const T delta = formulas.change(in, g, old, s);
        const T sum = canonical_nan(base + delta);
        weight[j] = sum;
        before[j] = w;
        dw[j] = base == w ? double(delta) : (double(base) - double(w)) + double(delta);
        if (update != nullptr) update[j] = canonical_nan(static_cast<T>(dw[j]));
        still += dw[j] != 0 && sum == w;
      }
    }
    return still;
  }
  template <int K, int kCount>
  static void plain_states(const Formulas<Value>& formulas, const Arithmetic& in, T g, T* s) {
    if constexpr (K < kCount) {
      s[K] = canonical_nan(formulas.template state<K>(in, g, s));
      plain_states<K + 1, kCount>(formulas, in, g, s);
    }
  }

  const OptimizerArrays<T>& a_;
  Arithmetic arithmetic_;
  Storage<T> storage_;
  Formulas<Value> formulas_;
  bool decay_weight_, decay_gradient_;
  Value decay_, keep_;
  Measurement<kMeasured> of_weight_, of_update_;
  std::optional<Measurement<kMeasured>> of_states_[kMaxOptimizerStates];
};

template <template <typename> typename Formulas, typename T, typename Numbers>
void run_optimizer(const Numbers& rule, const OptimizerArrays<T>& arrays, UpdateStats* stats) {
  const OptimizerMeasurements& m = arrays.measured;
  bool wanted = m.weight != nullptr || m.update != nullptr;
  for (const TensorStats* state : m.states) wanted |= state != nullptr;
  if (!is_native<T>(*arrays.formats.arithmetic)) {
    if (arrays.formats.steps == OptimizerSteps::kElementary) {
      OptimizerLoop<true, T, RoundedArithmetic, Formulas, Numbers>(rule, arrays).run(stats);
    } else {
      OptimizerLoop<true, T, TorchArithmetic, Formulas, Numbers>(rule, arrays).run(stats);
    }
  } else if (wanted) {
    OptimizerLoop<true, T, NativeArithmetic<T>, Formulas, Numbers>(rule, arrays).run(stats);
  } else {
    OptimizerLoop<false, T, NativeArithmetic<T>, Formulas, Numbers>(rule, arrays).run(stats);
  }
}

}  // namespace lockstep::optimizer_loop
