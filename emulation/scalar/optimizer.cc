// Optimizer steps in the order of torch.optim's single-tensor loops.
//
// Arithmetic narrower than the container runs in double and rounds after every operation: + - * /
// and sqrt of p-bit numbers in 53 >= 2p + 2 bits, rounded again to p, equal one rounding. Source:
// S. Figueroa, "When is double rounding innocuous?", SIGNUM 30(3), 1995. Gradients, states and
// weights may be wider than the arithmetic: their products are exact in double, their sums go
// through round to odd.
#include "emulation/scalar/optimizer.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <type_traits>
#include <vector>

#include "emulation/block_pass.h"
#include "emulation/fast_round.h"
#include "emulation/reduction.h"
#include "emulation/rounding.h"
#include "src/core/parallel.h"

namespace lockstep {
namespace {

// Rounds to nearest even in any format; fast where FastRound knows the format.
class Rounder {
 public:
  explicit Rounder(const Format& format) : format_(&format) {
    if (FastRound::covers(format)) fast_.emplace(format);
  }
  double operator()(double x) const {
    return fast_ ? (*fast_)(x) : round_to_format(x, *format_, Rounding::kNearestEven);
  }

 private:
  const Format* format_;
  std::optional<FastRound> fast_;
};

// Operations in the container's own type.
template <typename T>
struct NativeArithmetic {
  using Value = T;
  explicit NativeArithmetic(const Format&) {}
  Value constant(double x) const { return static_cast<T>(x); }
  Value round(Value x) const { return x; }
  Value add(Value x, Value y) const { return x + y; }
};
// Operations in double, each rounded to a narrower format.
struct RoundedArithmetic {
  using Value = double;
  explicit RoundedArithmetic(const Format& format) : rounder(format) {}
  Value constant(double x) const { return rounder(x); }
  Value round(Value x) const { return rounder(x); }
  Value add(Value x, Value y) const { return rounder(fast_add_to_odd(x, y)); }
  Rounder rounder;
};
// Operations in double without any rounding of their own: what RoundedArithmetic is measured by.
struct UnroundedArithmetic {
  double round(double x) const { return x; }
  double add(double x, double y) const { return x + y; }
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
  // Of the container's own format: one float (or double) addition. Any other: `sum` rounded once.
  T weight(double base, double delta, int64_t index) const {
    if (native_weight_ && formats_.rounding == Rounding::kNearestEven) {
      return canonical_nan(static_cast<T>(base + delta));
    }
    return rounded(fast_add_to_odd(base, delta), weight_, *formats_.weight, formats_.rounding,
                   formats_.key, index);
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

// Statistics of one array that is written element by element, if anyone asks: quantize's, with
// the same sums in the same shape. Elements of a block are added by one thread, in their order.
// With kMeasured false nobody ever asks, and the loops are compiled without it.
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

// Runs step(i) -> dw over all elements in blocks, writes the weights w + dw and gathers statistics.
// `decayed(w)` is the weight that dw is added to (AdamW's decay comes before the update).
// `unrounded(i, w)` is w_new - w without roundings, after step(i) has written the states.
template <bool kMeasured, typename T, typename Decay, typename Step, typename Unrounded>
void update_weights(int64_t count, T* weight, T* update, const OptimizerFormats& formats,
                    const OptimizerMeasurements& measured, UpdateStats* stats, Decay decayed,
                    Step step, Unrounded unrounded) {
  const Storage<T> storage(formats);
  Measurement<kMeasured> of_weight(measured.weight, *formats.weight, count);
  Measurement<kMeasured> of_update(measured.update, *formats.arithmetic, count);
  const int64_t blocks = (count + kReductionBlock - 1) / kReductionBlock;
  std::vector<double> update_sq(static_cast<size_t>(blocks)), weight_sq(update_sq);
  std::vector<uint64_t> stagnant(static_cast<size_t>(blocks));
  const auto plus = [](double x, double y) { return x + y; };
  parallel_for(blocks, [&](int64_t block) {
    const int64_t begin = block * kReductionBlock;
    const int64_t n = std::min(kReductionBlock, count - begin);
    double dw[kReductionBlock], before[kReductionBlock];
    uint64_t still = 0;
    for (int64_t j = 0; j < n; ++j) {
      const int64_t i = begin + j;
      const double w = weight[i];
      const double base = decayed(weight[i]);
      const double delta = step(i);
      before[j] = w;
      dw[j] = base == w ? delta : (base - w) + delta;
      if (update != nullptr) update[i] = canonical_nan(static_cast<T>(dw[j]));
      if (of_update.wanted()) of_update.add(i, unrounded(i, w), update[i]);
      weight[i] = storage.weight(base, delta, i);
      if (of_weight.wanted()) of_weight.add(i, base + delta, weight[i]);
      still += dw[j] != 0 && weight[i] == static_cast<T>(w);
    }
    const size_t b = static_cast<size_t>(block);
    stagnant[b] = still;
    update_sq[b] = reduce_fixed<double>(
        n, [&](int64_t j) { return dw[j] * dw[j]; }, plus);
    weight_sq[b] = reduce_fixed<double>(
        n, [&](int64_t j) { return before[j] * before[j]; }, plus);
  });
  of_weight.finish();
  of_update.finish();
  if (stats == nullptr) return;
  *stats = UpdateStats{};
  for (const uint64_t still : stagnant) stats->stagnant += still;
  stats->count = static_cast<uint64_t>(count);
  stats->update_sq = join_blocks(std::move(update_sq), plus);
  stats->weight_sq = join_blocks(std::move(weight_sq), plus);
}

template <bool kMeasured, typename T, typename Arithmetic>
void sgd(const SgdArgs<T>& a, UpdateStats* stats) {
  using Value = typename Arithmetic::Value;
  const Arithmetic arithmetic(*a.formats.arithmetic);
  const UnroundedArithmetic unrounded;
  const Storage<T> storage(a.formats);
  Measurement<kMeasured> of_buffer(a.measured.states[0], *a.formats.state, a.count);
  const Value minus_lr = arithmetic.constant(-a.lr), momentum = arithmetic.constant(a.momentum);
  const Value decay = arithmetic.constant(a.weight_decay);
  // The new buffer, or without one the gradient. V is the type computed in.
  const auto direction = [&]<typename V>(const auto& in, int64_t i, V g) -> V {
    if (a.weight_decay != 0) g = in.add(g, in.round(V(decay) * V(a.weight[i])));
    if (a.momentum_buffer == nullptr || a.first_step) return g;
    return in.add(in.round(V(momentum) * V(a.momentum_buffer[i])), g);
  };
  const auto step = [&](int64_t i) -> double {
    Value g = direction(arithmetic, i, Value(a.grad[i]));
    if (a.momentum_buffer != nullptr) {
      const T buffer = storage.state(g, 0, i);
      if (of_buffer.wanted()) of_buffer.add(i, direction(unrounded, i, double(a.grad[i])), buffer);
      g = a.momentum_buffer[i] = buffer;
    }
    return arithmetic.round(minus_lr * g);
  };
  update_weights<kMeasured>(
      a.count, a.weight, a.update, a.formats, a.measured, stats, [](T w) { return double(w); },
      step,
      [&](int64_t i, double) {
        return double(minus_lr) * (a.momentum_buffer != nullptr
                                       ? double(a.momentum_buffer[i])
                                       : direction(unrounded, i, double(a.grad[i])));
      });
  of_buffer.finish();
}

bool any_wanted(const OptimizerMeasurements& m) {
  return m.weight != nullptr || m.update != nullptr || m.states[0] != nullptr ||
         m.states[1] != nullptr;
}

// x^n by squaring: the same bits everywhere, which libm's pow does not promise.
double power(double x, int64_t n) {
  double result = 1;
  for (; n > 0; n /= 2, x *= x) {
    if (n % 2 == 1) result *= x;
  }
  return result;
}

template <bool kMeasured, typename T, typename Arithmetic>
void adam(const AdamArgs<T>& a, UpdateStats* stats) {
  using Value = typename Arithmetic::Value;
  const Arithmetic arithmetic(*a.formats.arithmetic);
  const UnroundedArithmetic unrounded;
  const Storage<T> storage(a.formats);
  Measurement<kMeasured> of_avg(a.measured.states[0], *a.formats.state, a.count);
  Measurement<kMeasured> of_avg_sq(a.measured.states[1], *a.formats.state, a.count);
  const Value minus_step_size = arithmetic.constant(-a.lr / (1 - power(a.beta1, a.step)));
  const Value root_correction = arithmetic.constant(std::sqrt(1 - power(a.beta2, a.step)));
  const Value one_minus_beta1 = arithmetic.constant(1 - a.beta1);
  const Value beta2 = arithmetic.constant(a.beta2);
  const Value one_minus_beta2 = arithmetic.constant(1 - a.beta2);
  const Value eps = arithmetic.constant(a.eps);
  const Value decay = arithmetic.constant(a.weight_decay);
  const Value keep = arithmetic.constant(1 - a.lr * a.weight_decay);
  const bool decay_weight = a.decoupled_weight_decay && a.weight_decay != 0;
  const bool decay_gradient = !a.decoupled_weight_decay && a.weight_decay != 0;
  const auto decayed = [&](T w) -> double {
    return decay_weight ? arithmetic.round(keep * Value(w)) : Value(w);
  };
  // The formulas, in the type V and with the roundings of `in`.
  const auto gradient = [&]<typename V>(const auto& in, int64_t i, V g) -> V {
    return decay_gradient ? in.add(g, in.round(V(decay) * V(a.weight[i]))) : g;
  };
  // torch's lerp_(m, g, weight = 1 - beta1) goes from the end that is nearer.
  const auto average = [&]<typename V>(const auto& in, V m, V g) -> V {
    constexpr double kHalf = 0.5;
    const V weight = one_minus_beta1, difference = in.add(g, -m);
    if (weight < V(kHalf)) return in.add(m, in.round(weight * difference));
    return in.add(g, -in.round(difference * (V(1) - weight)));  // 1 - weight is exact here
  };
  const auto average_sq = [&]<typename V>(const auto& in, V v, V g) -> V {
    return in.add(in.round(v * V(beta2)), in.round(in.round(V(one_minus_beta2) * g) * g));
  };
  const auto change = [&]<typename V>(const auto& in, V m, V v) -> V {
    const V root = in.round(std::sqrt(v));
    const V denominator = in.add(in.round(root / V(root_correction)), V(eps));
    return in.round(in.round(V(minus_step_size) * m) / denominator);
  };
  const auto step = [&](int64_t i) -> double {
    const Value g = gradient(arithmetic, i, Value(a.grad[i]));
    const T m = a.exp_avg[i], v = a.exp_avg_sq[i];
    a.exp_avg[i] = storage.state(average(arithmetic, Value(m), g), 0, i);
    a.exp_avg_sq[i] = storage.state(average_sq(arithmetic, Value(v), g), 1, i);
    if (of_avg.wanted() || of_avg_sq.wanted()) {
      const double exact_g = gradient(unrounded, i, double(a.grad[i]));
      if (of_avg.wanted()) of_avg.add(i, average(unrounded, double(m), exact_g), a.exp_avg[i]);
      if (of_avg_sq.wanted()) {
        of_avg_sq.add(i, average_sq(unrounded, double(v), exact_g), a.exp_avg_sq[i]);
      }
    }
    return change(arithmetic, Value(a.exp_avg[i]), Value(a.exp_avg_sq[i]));
  };
  update_weights<kMeasured>(a.count, a.weight, a.update, a.formats, a.measured, stats, decayed,
                            step, [&](int64_t i, double w) {
                              const double base = decay_weight ? double(keep) * w : w;
                              const double delta =
                                  change(unrounded, double(a.exp_avg[i]), double(a.exp_avg_sq[i]));
                              return base == w ? delta : (base - w) + delta;
                            });
  of_avg.finish();
  of_avg_sq.finish();
}

}  // namespace

template <typename T>
void scalar_sgd(const SgdArgs<T>& args, UpdateStats* stats) {
  if (!is_native<T>(*args.formats.arithmetic)) {
    sgd<true, T, RoundedArithmetic>(args, stats);
  } else if (any_wanted(args.measured)) {
    sgd<true, T, NativeArithmetic<T>>(args, stats);
  } else {
    sgd<false, T, NativeArithmetic<T>>(args, stats);
  }
}

template <typename T>
void scalar_adam(const AdamArgs<T>& args, UpdateStats* stats) {
  if (!is_native<T>(*args.formats.arithmetic)) {
    adam<true, T, RoundedArithmetic>(args, stats);
  } else if (any_wanted(args.measured)) {
    adam<true, T, NativeArithmetic<T>>(args, stats);
  } else {
    adam<false, T, NativeArithmetic<T>>(args, stats);
  }
}

#define LOCKSTEP_INSTANTIATE(T)                              \
  template void scalar_sgd(const SgdArgs<T>&, UpdateStats*); \
  template void scalar_adam(const AdamArgs<T>&, UpdateStats*);
LOCKSTEP_INSTANTIATE(float)
LOCKSTEP_INSTANTIATE(double)
#undef LOCKSTEP_INSTANTIATE

}  // namespace lockstep
