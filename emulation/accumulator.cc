// The table of accumulators and the definition of their one step.
#include "emulation/accumulator.h"

#include <cmath>
#include <limits>
#include <vector>

#include "emulation/rounding.h"
#include "src/core/error.h"

namespace lockstep {
namespace {

std::vector<Accumulator> make_table() {
  const auto row = [](const char* name, const char* format, const char* help, const char* source) {
    return Accumulator{name, AccumulatorKind::kFusedChain, &find_format(format), help, source};
  };
  return {
      row("fp64_fused", "fp64", "acc = fp64(acc + a[k] * b[k]), k ascending, one rounding per step",
          "IEEE 754-2019 section 5.4.1, fusedMultiplyAdd"),
      row("fp32_fused", "fp32", "acc = fp32(acc + a[k] * b[k]), k ascending, one rounding per step",
          "IEEE 754-2019 section 5.4.1, fusedMultiplyAdd"),
      row("bf16", "bf16",
          "acc = bf16(acc + a[k] * b[k]), k ascending; product and sum exact, one rounding per "
          "step",
          "the FP32 step in BF16; no hardware is claimed"),
      row("fp16", "fp16",
          "acc = fp16(acc + a[k] * b[k]), k ascending; product and sum exact, one rounding per "
          "step",
          "Arm ARM, FMLA (half precision); Intel SDM, VFMADD231PH"),
  };
}

// True when a * b + c is the double r exactly. Requires: no underflow in a * b.
bool fma_is_exact(double a, double b, double c, double r) {
  const double product = a * b;
  const double product_error = std::fma(a, b, -product);
  const double sum = c + product;
  const double from_product = sum - c;
  const double sum_error = (c - (sum - from_product)) + (product - from_product);
  // What r lacks: (sum - r) + sum_error + product_error, its first difference exact by Sterbenz.
  return (sum - r) + sum_error == -product_error;
}

uint8_t events_of_step(double result, double exact, bool inexact, bool finite_operands) {
  if (result != result) return kStepNan;
  if (std::isinf(result)) return finite_operands ? kStepToInfinity | kStepInexact : 0;
  if (!inexact) return 0;
  return result == 0 && exact != 0 ? kStepInexact | kStepToZero : kStepInexact;
}

// The quiet NaN of every kernel, so that no payload depends on operand order.
double canonical(double x) {
  return x == x ? x : std::numeric_limits<double>::quiet_NaN();
}

}  // namespace

std::span<const Accumulator> accumulators() {
  static const std::vector<Accumulator> table = make_table();
  return table;
}

const Accumulator& find_accumulator(std::string_view name) {
  std::vector<std::string> names;
  for (const Accumulator& row : accumulators()) {
    if (row.name == name) return row;
    names.push_back(row.name);
  }
  throw InputError("accumulator '" + std::string(name) + "': unknown", did_you_mean(name, names));
}

double accumulate_step(const Accumulator& accumulator, double acc, double a, double b,
                       uint8_t* events) {
  const Format& format = *accumulator.format;
  const bool finite = std::isfinite(acc) && std::isfinite(a) && std::isfinite(b);
  double exact, result;
  bool inexact;
  if (format.is_fp64()) {
    exact = result = canonical(std::fma(a, b, acc));
    inexact = finite && std::isfinite(result) && !fma_is_exact(a, b, acc, result);
  } else {
    exact = finite ? add_round_to_odd(acc, a * b) : acc + a * b;
    result = canonical(round_to_format(exact, format, Rounding::kNearestEven));
    inexact = result != exact;
  }
  if (events != nullptr) *events |= events_of_step(result, exact, inexact, finite);
  return result;
}

double accumulate_add(const Accumulator& accumulator, double acc, double x) {
  const Format& format = *accumulator.format;
  if (format.is_fp64()) return canonical(acc + x);
  const bool finite = std::isfinite(acc) && std::isfinite(x);
  const double exact = finite ? add_round_to_odd(acc, x) : acc + x;
  return canonical(round_to_format(exact, format, Rounding::kNearestEven));
}

}  // namespace lockstep
