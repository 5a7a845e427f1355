// Computes one output for every kind of accumulator.
#include "emulation/accumulator/dot.h"

#include <bit>
#include <cmath>
#include <limits>
#include <optional>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "emulation/accumulator/aligned_block.h"
#include "emulation/accumulator/cpu_dot.h"
#include "emulation/accumulator/fast_round.h"
#include "emulation/format/rounding.h"

namespace lockstep {
namespace {

// True when a * b + c is the double r exactly. Requires: no underflow in a * b.
bool fma_is_exact(double a, double b, double c, double r) {
  const double product = a * b;
  const double product_error = std::fma(a, b, -product);
  const double sum = c + product;
  const double from_product = sum - c;
  const double sum_error = (c - (sum - from_product)) + (product - from_product);
  // Error of r: (sum - r) + sum_error + product_error; the first difference is exact by Sterbenz.
  return (sum - r) + sum_error == -product_error;
}

uint8_t events_of_step(double result, double exact, bool inexact, bool finite_operands) {
  if (result != result) return kStepNan;
  if (std::isinf(result)) return finite_operands ? kStepToInfinity | kStepInexact : 0;
  if (!inexact) return 0;
  return result == 0 && exact != 0 ? kStepInexact | kStepToZero : kStepInexact;
}

// x + y, rounded to odd if it is inexact. An inexact one never equals a narrower sum.
double exact_sum(double x, double y) {
  return std::isfinite(x) && std::isfinite(y) ? add_round_to_odd(x, y) : x + y;
}

double round_sum(double x, double y, const Format& format, double* exact) {
  *exact = exact_sum(x, y);
  return canonical_nan(round_to_format(*exact, format, Rounding::kNearestEven));
}

double fused_step(const Format& format, double acc, double a, double b, uint8_t* events) {
  const bool finite = std::isfinite(acc) && std::isfinite(a) && std::isfinite(b);
  double exact, result;
  bool inexact;
  if (format.is_fp64()) {
    exact = result = canonical_nan(std::fma(a, b, acc));
    inexact = finite && std::isfinite(result) && !fma_is_exact(a, b, acc, result);
  } else {
    result = round_sum(acc, a * b, format, &exact);
    inexact = result != exact;
  }
  if (events != nullptr) *events |= events_of_step(result, exact, inexact, finite);
  return result;
}

double unfused_step(const Format& format, double acc, double a, double b, uint8_t* events) {
  const bool finite = std::isfinite(a) && std::isfinite(b);
  const double product = canonical_nan(round_to_format(a * b, format, Rounding::kNearestEven));
  double exact;
  const double result = round_sum(acc, product, format, &exact);
  if (events != nullptr) {
    *events |= events_of_step(product, a * b, product != a * b, finite);
    *events |= events_of_step(result, exact, result != exact, finite && std::isfinite(acc));
  }
  return result;
}

// One chain, fused or not, with fast forms of its step if they exist.
template <typename T>
class ChainRule {
 public:
  explicit ChainRule(const Accumulator& accumulator)
      : accumulator_(accumulator),
        // One std::fma does the whole step if doubles are summed in FP64.
        native_(std::is_same_v<T, double> && accumulator.kind == AccumulatorKind::kFusedChain &&
                accumulator.format->is_fp64()) {
    if constexpr (std::is_same_v<T, float>) {
      if (is_float_chain(accumulator)) floats_.emplace(*accumulator.format);
    }
  }

  double step(double acc, T a, T b, uint8_t* events) const {
    if constexpr (std::is_same_v<T, float>) {
      if (floats_) return floats_->step(acc, a, b, events);
    }
    if (events == nullptr && native_) return canonical_nan(std::fma(a, b, acc));
    return accumulate_step(accumulator_, acc, a, b, events);
  }

 private:
  const Accumulator& accumulator_;
  bool native_;
  std::optional<FloatChain> floats_;
};

// FP32 in plain float operations. GCC neither contracts nor reorders them here.
float kahan_dot(const float* a, const float* b, int64_t count, float start, DotSteps* steps) {
  const auto note = [&](const char* target, const char* formula, double exact, float rounded) {
    note_step(
        steps, target, [&] { return formula; }, exact, rounded);
  };
  float sum = start, lost = 0;
  for (int64_t k = 0; k < count; ++k) {
    const float product = a[k] * b[k];
    note_step(
        steps, "p", [&] { return product_text(k); }, double{a[k]} * b[k], product);
    const float y = product - lost;
    note("y", "p - lost", exact_sum(product, -lost), y);
    const float t = sum + y;
    note("t", "acc + y", exact_sum(sum, y), t);
    const float taken = t - sum;
    lost = taken - y;
    note("lost", "(t - acc) - y", exact_sum(taken, -y), lost);
    sum = t;
  }
  note("acc", "t", sum, sum);
  return canonical_nan(sum);
}

// A binary counter: level j holds the sum of 2^j products, or nothing.
float pairwise_dot(const float* a, const float* b, int64_t count, float start, DotSteps* steps) {
  // Two neighbouring sums, of k in [first, middle) and [middle, end).
  const auto join = [&](float x, float y, int64_t first, int64_t middle, int64_t end) {
    const float sum = x + y;
    const auto text = [&] {
      const auto range = [](int64_t from, int64_t to) {
        const std::string begin = "s[" + std::to_string(from);
        return to == from + 1 ? begin + "]" : begin + ".." + std::to_string(to - 1) + "]";
      };
      return range(first, middle) + " + " + range(middle, end);
    };
    note_step(steps, "s", text, exact_sum(x, y), sum);
    return sum;
  };
  std::vector<float> levels;
  for (int64_t k = 0; k < count; ++k) {
    float sum = a[k] * b[k];
    note_step(
        steps, "s", [&] { return product_text(k); }, double{a[k]} * b[k], sum);
    size_t level = 0;
    for (int64_t carry = k; (carry & 1) != 0; carry >>= 1) {
      const int64_t half = int64_t{1} << level;
      sum = join(levels[level++], sum, k + 1 - 2 * half, k + 1 - half, k + 1);
    }
    if (level == levels.size()) levels.push_back(0);
    levels[level] = sum;
  }
  if (count == 0) return canonical_nan(start);
  float total = 0;
  int64_t begin = count;  // total is the sum of k in [begin, count)
  for (size_t level = 0; level < levels.size(); ++level) {
    const int64_t length = int64_t{1} << level;
    if ((count & length) == 0) continue;
    total =
        begin == count ? levels[level] : join(levels[level], total, begin - length, begin, count);
    begin -= length;
  }
  const float sum = start + total;
  note_step(
      steps, "acc", [] { return "acc + s"; }, exact_sum(start, total), sum);
  return canonical_nan(sum);
}

// The format a factor is decoded in. Rows that take any factors do not look at encodings.
const Format& operand_format(const Accumulator& accumulator, const Format* given) {
  if (accumulator.operands.empty()) return *accumulator.format;
  if (given == nullptr && accumulator.operands.size() == 1) return *accumulator.operands[0];
  if (given == nullptr || !accumulator.takes(*given)) {
    throw std::logic_error("accumulator " + accumulator.name + ": takes no factors in " +
                           (given == nullptr ? "an unnamed format" : given->name));
  }
  return *given;
}

double dot_of_floats(const Accumulator& accumulator, const DotOperands<float>& o, double start,
                     uint8_t* events, DotSteps* steps) {
  const Format& a_format = operand_format(accumulator, o.a_format);
  const Format& b_format = operand_format(accumulator, o.b_format);
  if (accumulator.kind == AccumulatorKind::kAlignedBlocks) {
    return canonical_nan(
        aligned_block_dot(accumulator, o.a, a_format, o.b, b_format, o.count, start, events));
  }
  if (events != nullptr) {
    throw std::logic_error("accumulator " + accumulator.name + ": has no events");
  }
  const auto c = static_cast<float>(start);
  switch (accumulator.kind) {
    case AccumulatorKind::kKahan:
      return kahan_dot(o.a, o.b, o.count, c, steps);
    case AccumulatorKind::kPairwise:
      return pairwise_dot(o.a, o.b, o.count, c, steps);
    case AccumulatorKind::kBf16Pairs:
      return bf16_pairs_dot(o.a, o.b, o.count, c, steps);
    case AccumulatorKind::kAmxTile:
      return amx_tile_dot(o.a, o.b, o.count, c, steps);
    case AccumulatorKind::kArmPairs:
      return arm_pairs_dot(o.a, o.b, o.count, c, steps);
    case AccumulatorKind::kArmPairsFused:
      return arm_pairs_fused_dot(o.a, o.b, o.count, c, steps);
    default:
      throw std::logic_error("accumulator " + accumulator.name + ": not a dot product of floats");
  }
}

}  // namespace

bool is_float_chain(const Accumulator& accumulator) {
  return accumulator.kind == AccumulatorKind::kFusedChain &&
         FloatChain::covers(*accumulator.format);
}

double accumulate_step(const Accumulator& accumulator, double acc, double a, double b,
                       uint8_t* events) {
  if (!accumulator.adds()) {
    throw std::logic_error("accumulator " + accumulator.name + ": has no single steps");
  }
  const auto step = accumulator.kind == AccumulatorKind::kFusedChain ? fused_step : unfused_step;
  return step(*accumulator.format, acc, a, b, events);
}

double accumulate_add(const Accumulator& accumulator, double acc, double x) {
  const Format& format = *accumulator.format;
  if (format.is_fp64()) return canonical_nan(acc + x);
  double exact;
  return round_sum(acc, x, format, &exact);
}

template <typename T>
double accumulate_dot(const Accumulator& accumulator, const DotOperands<T>& o, double start,
                      uint8_t* events) {
  if (accumulator.adds()) {
    const ChainRule<T> chain(accumulator);
    double sum = start;
    for (int64_t k = 0; k < o.count; ++k) sum = chain.step(sum, o.a[k], o.b[k], events);
    return canonical_nan(sum);
  }
  if constexpr (std::is_same_v<T, float>) {
    return dot_of_floats(accumulator, o, start, events, nullptr);
  } else {
    throw std::logic_error("accumulator " + accumulator.name + ": takes floats");
  }
}

DotSteps trace_dot(const Accumulator& accumulator, const DotOperands<float>& o, double start) {
  if (accumulator.kind == AccumulatorKind::kAlignedBlocks) {
    throw std::logic_error("accumulator " + accumulator.name + ": its steps are blocks");
  }
  DotSteps steps;
  if (!accumulator.adds()) {
    dot_of_floats(accumulator, o, start, nullptr, &steps);
    return steps;
  }
  const bool fused = accumulator.kind == AccumulatorKind::kFusedChain;
  double acc = start;
  for (int64_t k = 0; k < o.count; ++k) {
    const double product = double{o.a[k]} * o.b[k];
    double term = product;
    if (!fused) {
      term = round_to_format(product, *accumulator.format, Rounding::kNearestEven);
      note_step(
          &steps, "p", [&] { return product_text(k); }, product, term);
    }
    const double exact = exact_sum(acc, term);
    acc = accumulate_step(accumulator, acc, o.a[k], o.b[k]);
    note_step(
        &steps, "acc", [&] { return fused ? "acc + " + product_text(k) : "acc + p"; }, exact, acc);
  }
  return steps;
}

template double accumulate_dot(const Accumulator&, const DotOperands<float>&, double, uint8_t*);
template double accumulate_dot(const Accumulator&, const DotOperands<double>&, double, uint8_t*);

}  // namespace lockstep
