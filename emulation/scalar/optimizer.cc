// Optimizer steps in the order of torch.optim's single-tensor loops.
//
// Arithmetic narrower than the container runs in double and rounds after every operation: + - * /
// and sqrt of p-bit numbers in 53 >= 2p + 2 bits, rounded again to p, equal one rounding. Source:
// S. Figueroa, "When is double rounding innocuous?", SIGNUM 30(3), 1995.
#include "emulation/scalar/optimizer.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <type_traits>
#include <vector>

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
    if (format.has_infinity && format.has_subnormals) fast_.emplace(format);
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
};
// Operations in double, each rounded to a narrower format.
struct RoundedArithmetic {
  using Value = double;
  explicit RoundedArithmetic(const Format& format) : rounder(format) {}
  Value constant(double x) const { return rounder(x); }
  Value round(Value x) const { return rounder(x); }
  Rounder rounder;
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
        native_weight_(is_native<T>(*formats.weight)),
        nearest_(formats.rounding == Rounding::kNearestEven) {}

  T state(double x) const { return canonical_nan(static_cast<T>(native_state_ ? x : state_(x))); }
  T weight(double x, int64_t index) const {
    if (nearest_) return canonical_nan(static_cast<T>(native_weight_ ? x : weight_(x)));
    const uint32_t random = formats_.rounding == Rounding::kStochastic
                                ? stochastic_bits(formats_.key, static_cast<uint64_t>(index))
                                : 0;
    return canonical_nan(
        static_cast<T>(round_to_format(x, *formats_.weight, formats_.rounding, random)));
  }

 private:
  const OptimizerFormats& formats_;
  Rounder state_, weight_;
  bool native_state_, native_weight_, nearest_;
};

// Runs step(i) -> dw over all elements in blocks, writes the weights w + dw and gathers statistics.
// `decayed(w)` is the weight that dw is added to (AdamW's decay comes before the update).
template <typename T, typename Decay, typename Step>
void update_weights(int64_t count, T* weight, T* update, const OptimizerFormats& formats,
                    UpdateStats* stats, Decay decayed, Step step) {
  const Storage<T> storage(formats);
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
      weight[i] = storage.weight(base + delta, i);
      before[j] = w;
      dw[j] = base == w ? delta : (base - w) + delta;
      still += dw[j] != 0 && weight[i] == static_cast<T>(w);
      if (update != nullptr) update[i] = canonical_nan(static_cast<T>(dw[j]));
    }
    const size_t b = static_cast<size_t>(block);
    stagnant[b] = still;
    update_sq[b] = reduce_fixed<double>(
        n, [&](int64_t j) { return dw[j] * dw[j]; }, plus);
    weight_sq[b] = reduce_fixed<double>(
        n, [&](int64_t j) { return before[j] * before[j]; }, plus);
  });
  if (stats == nullptr) return;
  *stats = UpdateStats{};
  for (const uint64_t still : stagnant) stats->stagnant += still;
  stats->count = static_cast<uint64_t>(count);
  stats->update_sq = join_blocks(std::move(update_sq), plus);
  stats->weight_sq = join_blocks(std::move(weight_sq), plus);
}

template <typename T, typename Arithmetic>
void sgd(const SgdArgs<T>& a, UpdateStats* stats) {
  using Value = typename Arithmetic::Value;
  const Arithmetic arithmetic(*a.formats.arithmetic);
  const Storage<T> storage(a.formats);
  const Value minus_lr = arithmetic.constant(-a.lr), momentum = arithmetic.constant(a.momentum);
  const Value decay = arithmetic.constant(a.weight_decay);
  const auto round = [&](Value x) { return arithmetic.round(x); };
  const auto step = [&](int64_t i) -> double {
    Value g = a.grad[i];
    if (a.weight_decay != 0) g = round(g + round(decay * Value(a.weight[i])));
    if (a.momentum_buffer != nullptr) {
      if (!a.first_step) g = round(round(momentum * Value(a.momentum_buffer[i])) + g);
      a.momentum_buffer[i] = storage.state(g);
      g = a.momentum_buffer[i];
    }
    return round(minus_lr * g);
  };
  update_weights(
      a.count, a.weight, a.update, a.formats, stats, [](T w) { return double(w); }, step);
}

// x^n by squaring: the same bits everywhere, which libm's pow does not promise.
double power(double x, int64_t n) {
  double result = 1;
  for (; n > 0; n /= 2, x *= x) {
    if (n % 2 == 1) result *= x;
  }
  return result;
}

template <typename T, typename Arithmetic>
void adam(const AdamArgs<T>& a, UpdateStats* stats) {
  using Value = typename Arithmetic::Value;
  const Arithmetic arithmetic(*a.formats.arithmetic);
  const Storage<T> storage(a.formats);
  const auto round = [&](Value x) { return arithmetic.round(x); };
  const Value minus_step_size = arithmetic.constant(-a.lr / (1 - power(a.beta1, a.step)));
  const Value root_correction = arithmetic.constant(std::sqrt(1 - power(a.beta2, a.step)));
  const Value one_minus_beta1 = arithmetic.constant(1 - a.beta1);
  const Value beta2 = arithmetic.constant(a.beta2);
  const Value one_minus_beta2 = arithmetic.constant(1 - a.beta2);
  const Value eps = arithmetic.constant(a.eps);
  const Value decay = arithmetic.constant(a.weight_decay);
  const Value keep = arithmetic.constant(1 - a.lr * a.weight_decay);
  const auto decayed = [&](T w) -> double {
    return a.decoupled_weight_decay && a.weight_decay != 0 ? round(keep * Value(w)) : Value(w);
  };
  const auto step = [&](int64_t i) -> double {
    Value g = a.grad[i];
    if (!a.decoupled_weight_decay && a.weight_decay != 0) {
      g = round(g + round(decay * Value(a.weight[i])));
    }
    const Value m = a.exp_avg[i], v = a.exp_avg_sq[i];
    a.exp_avg[i] = storage.state(round(m + round(one_minus_beta1 * round(g - m))));
    a.exp_avg_sq[i] =
        storage.state(round(round(v * beta2) + round(round(one_minus_beta2 * g) * g)));
    const Value root = round(std::sqrt(Value(a.exp_avg_sq[i])));
    const Value denominator = round(round(root / root_correction) + eps);
    return round(round(minus_step_size * Value(a.exp_avg[i])) / denominator);
  };
  update_weights(a.count, a.weight, a.update, a.formats, stats, decayed, step);
}

}  // namespace

template <typename T>
void scalar_sgd(const SgdArgs<T>& args, UpdateStats* stats) {
  if (is_native<T>(*args.formats.arithmetic)) {
    sgd<T, NativeArithmetic<T>>(args, stats);
  } else {
    sgd<T, RoundedArithmetic>(args, stats);
  }
}

template <typename T>
void scalar_adam(const AdamArgs<T>& args, UpdateStats* stats) {
  if (is_native<T>(*args.formats.arithmetic)) {
    adam<T, NativeArithmetic<T>>(args, stats);
  } else {
    adam<T, RoundedArithmetic>(args, stats);
  }
}

#define LOCKSTEP_INSTANTIATE(T)                              \
  template void scalar_sgd(const SgdArgs<T>&, UpdateStats*); \
  template void scalar_adam(const AdamArgs<T>&, UpdateStats*);
LOCKSTEP_INSTANTIATE(float)
LOCKSTEP_INSTANTIATE(double)
#undef LOCKSTEP_INSTANTIATE

}  // namespace lockstep
