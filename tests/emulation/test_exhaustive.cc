// All 2^32 FP32 inputs. The expected results come from exact arithmetic: in ascending order of the
// inputs' magnitudes the results ascend too, so a format is a short list of boundaries "from this
// float on, this value". Every element of the fused pass is compared with that list. The scalar
// kernel is too slow for that: every 8th chunk of 2^18 inputs is compared with the list, and its
// statistics with the fused pass's on every 64th.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "emulation/kernel_set.h"
#include "emulation/oracle.h"
#include "emulation/rounding.h"
#include "emulation/scalar/quantize.h"
#include "src/core/parallel.h"

using namespace lockstep;

namespace {

constexpr uint32_t kInfinityBits = 0x7f800000, kNanBits = 0x7fc00000, kSignBit = 0x80000000;
constexpr int64_t kChunkInputs = int64_t{1} << 18;
constexpr int64_t kChunks = (int64_t{1} << 32) / kChunkInputs;
constexpr int64_t kScalarStride = 8, kStatisticsStride = 64;

uint32_t bits_of(double x) {
  return std::bit_cast<uint32_t>(static_cast<float>(x));
}
float float_of(uint32_t bits) {
  return std::bit_cast<float>(bits);
}

// From magnitude bits `from` on, the result has magnitude bits `value`.
struct Boundary {
  uint32_t from, value;
};

uint32_t oracle_magnitude(uint32_t bits, bool negative, const Format& f, Rounding rounding) {
  const double x = negative ? -static_cast<double>(float_of(bits)) : float_of(bits);
  const double rounded = oracle_round(x, f, rounding);
  return std::isnan(rounded) ? kNanBits : bits_of(rounded) & ~kSignBit;
}

// The boundaries of all magnitudes up to infinity, by bisection between neighbouring values: the
// oracle alone says where the result changes.
std::vector<Boundary> make_boundaries(const Format& f, Rounding rounding, bool negative) {
  std::vector<uint32_t> knots;
  for (const double v : nonnegative_values(f)) knots.push_back(bits_of(v));
  knots.push_back(kInfinityBits);
  std::vector<Boundary> list = {{0, oracle_magnitude(0, negative, f, rounding)}};
  for (size_t i = 0; i + 1 < knots.size(); ++i) {
    // Between two neighbours the result changes at most twice: after the lower one (directed
    // modes), before or at the upper one.
    for (uint32_t low = knots[i]; low < knots[i + 1];) {
      const uint32_t value = oracle_magnitude(low, negative, f, rounding);
      uint32_t high = knots[i + 1];
      if (value != list.back().value) list.push_back({low, value});
      if (oracle_magnitude(high, negative, f, rounding) == value) break;
      const bool next_differs = oracle_magnitude(low + 1, negative, f, rounding) != value;
      if (next_differs) high = low + 1;
      while (high - low > 1) {
        const uint32_t middle = low + (high - low) / 2;
        (oracle_magnitude(middle, negative, f, rounding) == value ? low : high) = middle;
      }
      low = high;
    }
  }
  const uint32_t at_infinity = oracle_magnitude(kInfinityBits, negative, f, rounding);
  if (at_infinity != list.back().value) list.push_back({kInfinityBits, at_infinity});
  return list;
}

// Results that are not what the boundaries say, in a chunk of consecutive bit patterns.
int64_t count_wrong(const std::vector<Boundary>& list, uint32_t first, const float* results) {
  const bool negative = (first & kSignBit) != 0;
  const uint32_t magnitude = first & ~kSignBit;
  auto at = std::upper_bound(list.begin(), list.end(), magnitude,
                             [](uint32_t m, const Boundary& b) { return m < b.from; }) -
            1;
  int64_t wrong = 0;
  for (int64_t i = 0; i < kChunkInputs; ++i) {
    const uint32_t m = magnitude + static_cast<uint32_t>(i);
    const bool nan = m > kInfinityBits;
    while (!nan && at + 1 != list.end() && (at + 1)->from <= m) ++at;
    uint32_t expected = nan ? kNanBits : at->value;
    if (negative && expected != kNanBits) expected |= kSignBit;
    wrong += std::bit_cast<uint32_t>(results[i]) != expected;
  }
  return wrong;
}

bool same_statistics(const TensorStats& a, const TensorStats& b) {
  const ErrorStats none;
  for (const Statistic& row : statistics()) {
    if (row.kind == StatisticKind::kCount ? row.count(a, none) != row.count(b, none)
                                          : std::bit_cast<uint64_t>(row.moment(a, none)) !=
                                                std::bit_cast<uint64_t>(row.moment(b, none))) {
      return false;
    }
  }
  return a.bits_hash == b.bits_hash && a.exponent_histogram == b.exponent_histogram;
}

struct Outcome {
  std::atomic<int64_t> inputs{0}, wrong{0}, scalar_inputs{0}, scalar_wrong{0};
  std::atomic<int64_t> statistics_checked{0}, statistics_wrong{0};
};

// `set` on all inputs.
void check_all_inputs(const KernelSet& set, const Format& f, Rounding rounding, Outcome& outcome) {
  const std::vector<Boundary> positive = make_boundaries(f, rounding, false);
  const std::vector<Boundary> negative = make_boundaries(f, rounding, true);
  const QuantizeSpec spec{.format = &f, .rounding = rounding};
  parallel_for(kChunks, [&](int64_t chunk) {
    const auto first = static_cast<uint32_t>(chunk * kChunkInputs);
    std::vector<float> x(kChunkInputs), y(kChunkInputs);
    for (int64_t i = 0; i < kChunkInputs; ++i) {
      x[static_cast<size_t>(i)] = float_of(first + static_cast<uint32_t>(i));
    }
    TensorStats stats;
    set.f32.quantize(x.data(), y.data(), kChunkInputs, spec, &stats);
    outcome.inputs += static_cast<int64_t>(stats.count);
    const std::vector<Boundary>& list = (first & kSignBit) != 0 ? negative : positive;
    outcome.wrong += count_wrong(list, first, y.data());
    if (chunk % kScalarStride != 0) return;
    const bool measured = chunk % kStatisticsStride == 0;
    TensorStats expected;
    scalar_quantize(x.data(), y.data(), kChunkInputs, spec, measured ? &expected : nullptr);
    outcome.scalar_inputs += kChunkInputs;
    outcome.scalar_wrong += count_wrong(list, first, y.data());
    if (!measured) return;
    ++outcome.statistics_checked;
    outcome.statistics_wrong += !same_statistics(stats, expected);
  });
}

void expect_all_right(const KernelSet& set, const Format& f, Rounding rounding) {
  Outcome outcome;
  check_all_inputs(set, f, rounding, outcome);
  INFO(set.name << " " << f.name << " " << to_string(rounding));
  CHECK(outcome.inputs.load() == int64_t{1} << 32);
  CHECK(outcome.wrong.load() == 0);
  CHECK(outcome.scalar_inputs.load() == (int64_t{1} << 32) / kScalarStride);
  CHECK(outcome.scalar_wrong.load() == 0);
  CHECK(outcome.statistics_checked.load() == kChunks / kStatisticsStride);
  CHECK(outcome.statistics_wrong.load() == 0);
}

}  // namespace

TEST_SUITE("slow") {
  TEST_CASE("all 2^32 inputs: the fastest kernel set, fp16 bf16 tf32, to nearest even") {
    const KernelSet& fastest = *available_kernel_sets().back();
    for (const char* name : {"fp16", "bf16", "tf32"}) {
      expect_all_right(fastest, find_format(name), Rounding::kNearestEven);
    }
  }

  TEST_CASE("all 2^32 inputs: every other vector kernel set, fp16 to nearest even") {
    const auto sets = available_kernel_sets();
    for (size_t i = 1; i + 1 < sets.size(); ++i) {
      expect_all_right(*sets[i], find_format("fp16"), Rounding::kNearestEven);
    }
    if (sets.size() < 3) MESSAGE("SKIPPED: 1 case: this CPU has one vector kernel set or none");
  }

  TEST_CASE("all 2^32 inputs: OCP fp8 to nearest even, tf32 to nearest away") {
    const KernelSet& fastest = *available_kernel_sets().back();
    expect_all_right(fastest, find_format("fp8_e4m3"), Rounding::kNearestEven);
    expect_all_right(fastest, find_format("fp8_e5m2"), Rounding::kNearestEven);
    expect_all_right(fastest, find_format("tf32"), Rounding::kNearestAway);
  }
}

TEST_CASE("boundaries by hand: fp8_e5m2 to nearest even") {
  const auto list = make_boundaries(find_format("fp8_e5m2"), Rounding::kNearestEven, false);
  // 0 up to and including 2^-17, then 2^-16 up to but not including 1.5 * 2^-16 (odd, tie up).
  CHECK(list[0].value == 0);
  CHECK(list[1].from == bits_of(0x1p-17) + 1);
  CHECK(list[1].value == bits_of(0x1p-16));
  CHECK(list[2].from == bits_of(0x1.8p-16));
  CHECK(list.back().from == bits_of(61440));
  CHECK(list.back().value == kInfinityBits);
}
