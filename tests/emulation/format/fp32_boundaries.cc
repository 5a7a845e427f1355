// Calls the oracle at both ends of every interval between neighbouring values of the format, next
// to the ends, and around the middle. Between two of these points with equal results nothing can
// change. Between two with different results, bisection finds the place.
#include "tests/emulation/format/fp32_boundaries.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <stdexcept>

#include "emulation/format/float_format.h"
#include "emulation/format/oracle.h"
#include "src/core/parallel.h"

namespace lockstep {
namespace {

uint32_t bits_of(double x) {
  return std::bit_cast<uint32_t>(static_cast<float>(x));
}

constexpr size_t kModes = 6, kLists = 2 * kModes;
// The results of one magnitude in every mode and sign, in the order of Fp32Boundaries::lists_.
using Results = std::array<uint32_t, kLists>;

size_t list_index(Rounding rounding, bool negative) {
  const std::vector<Rounding>& modes = deterministic_roundings();
  const auto at = std::find(modes.begin(), modes.end(), rounding);
  if (at == modes.end()) throw std::logic_error("boundaries: not a deterministic mode");
  return 2 * static_cast<size_t>(at - modes.begin()) + (negative ? 1 : 0);
}

uint32_t result_bits(double rounded) {
  return std::isnan(rounded) ? kFloatNan : bits_of(rounded);
}

Results results_at(uint32_t magnitude, const Format& format) {
  Results results;
  const double x = std::bit_cast<float>(magnitude);
  if (x == 0 || std::isinf(x)) {
    for (const Rounding mode : deterministic_roundings()) {
      results[list_index(mode, false)] = result_bits(oracle_round(x, format, mode));
      results[list_index(mode, true)] = result_bits(oracle_round(-x, format, mode));
    }
    return results;
  }
  const OraclePlace place{Exact(x), format};
  size_t i = 0;
  for (const Rounding mode : deterministic_roundings()) {
    for (const bool negative : {false, true})
      results[i++] = result_bits(place.round(mode, negative));
  }
  return results;
}

using Lists = std::array<std::vector<Boundary>, kLists>;

// Adds the changes in (a, b], given the results at both.
void add_changes(uint32_t a, const Results& at_a, uint32_t b, const Results& at_b,
                 const Format& format, Lists& lists) {
  if (at_a == at_b) return;
  if (b - a > 1) {
    const uint32_t middle = a + (b - a) / 2;
    const Results at_middle = results_at(middle, format);
    add_changes(a, at_a, middle, at_middle, format, lists);
    add_changes(middle, at_middle, b, at_b, format, lists);
    return;
  }
  for (size_t i = 0; i < kLists; ++i) {
    if (at_a[i] != at_b[i]) lists[i].push_back({b, at_b[i]});
  }
}

void add_interval(uint32_t low, uint32_t high, const Format& format, Lists& lists) {
  const uint32_t middle = low + (high - low) / 2;
  uint32_t at = low;
  Results results = results_at(low, format);
  for (const uint32_t next : {low + 1, middle - 1, middle, middle + 1, high}) {
    if (next <= at || next > high) continue;
    const Results at_next = results_at(next, format);
    add_changes(at, results, next, at_next, format, lists);
    at = next;
    results = at_next;
  }
}

}  // namespace

const std::vector<Rounding>& deterministic_roundings() {
  static const std::vector<Rounding> modes = [] {
    std::vector<Rounding> list;
    for (const RoundingInfo& row : roundings()) {
      if (row.rounding != Rounding::kStochastic) list.push_back(row.rounding);
    }
    if (list.size() != kModes) throw std::logic_error("boundaries: other modes than expected");
    return list;
  }();
  return modes;
}

Fp32Boundaries::Fp32Boundaries(const Format& format) : lists_(kLists) {
  std::vector<uint32_t> knots;
  for (const double v : nonnegative_values(format)) knots.push_back(bits_of(v));
  knots.push_back(kFloatInfinity);
  constexpr size_t kIntervals = 1 << 10;  // of one task
  const size_t intervals = knots.size() - 1, tasks = (intervals + kIntervals - 1) / kIntervals;
  std::vector<Lists> parts(tasks);
  parallel_for(static_cast<int64_t>(tasks), [&](int64_t task) {
    const size_t begin = static_cast<size_t>(task) * kIntervals;
    for (size_t i = begin; i < std::min(intervals, begin + kIntervals); ++i) {
      add_interval(knots[i], knots[i + 1], format, parts[static_cast<size_t>(task)]);
    }
  });
  const Results at_zero = results_at(0, format);
  for (size_t i = 0; i < kLists; ++i) {
    lists_[i].push_back({0, at_zero[i]});
    for (const Lists& part : parts) {
      lists_[i].insert(lists_[i].end(), part[i].begin(), part[i].end());
    }
  }
}

const std::vector<Boundary>& Fp32Boundaries::of(Rounding rounding, bool negative) const {
  return lists_[list_index(rounding, negative)];
}

void Fp32Boundaries::fill(uint32_t first, int64_t count, Rounding rounding,
                          uint32_t* results) const {
  const std::vector<Boundary>& list = of(rounding, (first & kFloatSignBit) != 0);
  const uint32_t begin = first & ~kFloatSignBit;
  const uint32_t end = begin + static_cast<uint32_t>(count);
  auto next = std::upper_bound(list.begin(), list.end(), begin,
                               [](uint32_t m, const Boundary& b) { return m < b.from; });
  for (uint32_t at = begin; at < end;) {
    const bool nan = at > kFloatInfinity;
    uint32_t run_end = next == list.end() ? end : std::min(end, next->from);
    if (!nan) run_end = std::min(run_end, kFloatInfinity + 1);
    std::fill(results + (at - begin), results + (run_end - begin),
              nan ? kFloatNan : (next - 1)->value);
    at = run_end;
    if (next != list.end() && next->from <= at) ++next;
  }
}

}  // namespace lockstep
