// The scalar definition of rounding against exact arithmetic, where results can change: at every
// code, every midpoint, the overflow threshold, and the FP32 neighbours of each.
#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "emulation/format.h"
#include "emulation/oracle.h"
#include "emulation/rounding.h"
#include "emulation/stochastic.h"
#include "src/core/error.h"
#include "src/core/random.h"

using namespace lockstep;

namespace {

constexpr float kFloatInfinity = std::numeric_limits<float>::infinity();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

bool same(double a, double b) {
  return std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(b);
}

bool deterministic(Rounding r) {
  return r != Rounding::kStochastic;
}

struct Tally {
  int64_t checked = 0, wrong = 0;
  double first_wrong = 0;
};

// x and -x in every deterministic mode.
void check_point(double x, const Format& f, Tally& tally) {
  for (const RoundingInfo& mode : roundings()) {
    if (!deterministic(mode.rounding)) continue;
    for (const double signed_x : {x, -x}) {
      ++tally.checked;
      const double got = round_to_format(signed_x, f, mode.rounding);
      if (same(got, oracle_round(signed_x, f, mode.rounding))) continue;
      if (tally.wrong++ == 0) tally.first_wrong = signed_x;
    }
  }
}

// x as a double, and the floats around it.
void check_around(double x, const Format& f, Tally& tally) {
  check_point(x, f, tally);
  const float nearest = static_cast<float>(x);
  check_point(std::nextafter(nearest, kFloatInfinity), f, tally);
  check_point(std::nextafter(nearest, -kFloatInfinity), f, tally);
}

Tally check_every_code(const Format& f) {
  Tally tally;
  const std::vector<double> values = nonnegative_values(f);
  for (size_t i = 0; i < values.size(); ++i) {
    check_around(values[i], f, tally);
    if (i + 1 < values.size()) check_around(values[i] / 2 + values[i + 1] / 2, f, tally);
  }
  // The overflow threshold: half a place beyond max_finite, one place, far beyond.
  const double place = ulp(f.max_finite, f);
  for (const double beyond : {place / 4, place / 2, place * 0.75, place, place * 1.5, place * 2}) {
    check_around(f.max_finite + beyond, f, tally);
  }
  for (const double x : {0.0, 0x1p-149, 0x1p-126, 0x1.fffffep127, 0x1p-1074, 0x1p1023, 1e300}) {
    check_around(x, f, tally);
  }
  check_point(kInfinity, f, tally);
  check_point(std::nan(""), f, tally);
  return tally;
}

void expect_all_right(const Format& f) {
  const Tally tally = check_every_code(f);
  CAPTURE(f.name);
  CAPTURE(tally.first_wrong);
  CHECK(tally.wrong == 0);
  // At least two neighbourhoods of three points per code, two signs, six modes.
  CHECK(tally.checked >= int64_t{70} * static_cast<int64_t>(nonnegative_values(f).size()));
}

}  // namespace

TEST_CASE("oracle: the neighbours of a point are neighbours in the list of values") {
  // The oracle's own arithmetic against the list: between two listed values it gives one of them.
  for (const char* name : {"fp8_e4m3", "fp8_e5m2", "e3m2"}) {
    const Format& f = find_format(name);
    const auto values = nonnegative_values(f);
    for (size_t i = 0; i + 1 < values.size(); ++i) {
      const double a = values[i], b = values[i + 1], quarter = a + (b - a) / 4;
      CHECK(oracle_round(quarter, f, Rounding::kNearestEven) == a);
      CHECK(oracle_round(b - (b - a) / 4, f, Rounding::kNearestAway) == b);
      CHECK(oracle_round(a + (b - a) / 2, f, Rounding::kNearestAway) == b);
      CHECK(oracle_round(a + (b - a) / 2, f, Rounding::kNearestEven) == (i % 2 == 0 ? a : b));
      CHECK(oracle_round(quarter, f, Rounding::kUp) == b);
      CHECK(oracle_round(-quarter, f, Rounding::kUp) == -a);
      CHECK(oracle_round(quarter, f, Rounding::kDown) == a);
      CHECK(oracle_round(quarter, f, Rounding::kOdd) == (i % 2 == 0 ? b : a));
    }
  }
}

TEST_CASE("rounding equals the oracle around every code: named formats of 16 bits or fewer") {
  for (const Format& f : formats()) {
    if (f.storage_bits() <= 16) expect_all_right(f);
  }
}

TEST_CASE("rounding equals the oracle around every code: e<E>m<M>") {
  for (const char* name :
       {"e2m1", "e2m3", "e3m2", "e3m4", "e4m3", "e2m7", "e4m7", "e6m5", "e7m3", "e8m1", "e8m3"}) {
    expect_all_right(find_format(name));
  }
}

TEST_SUITE("slow") {
  TEST_CASE("rounding equals the oracle around every code: tf32 and all e<E>m<M> of 16 bits") {
    expect_all_right(find_format("tf32"));
    for (int e = 2; e <= 8; ++e) {
      for (int m = 1; e + m <= 15 && m <= 23; ++m) {
        expect_all_right(find_format("e" + std::to_string(e) + "m" + std::to_string(m)));
      }
    }
  }
}

TEST_CASE("values checked by hand") {
  const Format &fp16 = find_format("fp16"), &e4m3 = find_format("fp8_e4m3");
  CHECK(round_to_format(65520, fp16, Rounding::kNearestEven) == kInfinity);
  CHECK(round_to_format(65519.999, fp16, Rounding::kNearestEven) == 65504);
  CHECK(round_to_format(464, e4m3, Rounding::kNearestEven) == 448);  // a tie, and 448 is even
  CHECK(std::isnan(round_to_format(465, e4m3, Rounding::kNearestEven)));
  CHECK(same(round_to_format(-0x1p-25, fp16, Rounding::kNearestEven), -0.0));
}

TEST_CASE("NaN comes out as one NaN") {
  const double quiet = std::numeric_limits<double>::quiet_NaN();
  for (const Format& f : formats()) {
    CHECK(same(round_to_format(-quiet, f, Rounding::kUp), quiet));
    CHECK(
        same(round_to_format(std::bit_cast<double>(0x7ff0000000000001), f, Rounding::kOdd), quiet));
  }
}

TEST_CASE("fp32 and fp64 round as the machine does") {
  const Format &fp32 = find_format("fp32"), &fp64 = find_format("fp64");
  const RandomStream stream(5, RandomPurpose::kTest);
  int wrong = 0;
  for (uint64_t i = 0; i < 200000; ++i) {
    const double x =
        std::bit_cast<double>(uint64_t{stream.bits(2 * i)} << 32 | stream.bits(2 * i + 1));
    if (std::isnan(x)) continue;
    wrong += !same(round_to_format(x, fp64, Rounding::kUp), x);
    wrong += !same(round_to_format(x, fp32, Rounding::kNearestEven), static_cast<float>(x));
    // Exponents that floats have.
    const double y =
        std::ldexp(x / std::ldexp(1.0, std::ilogb(x)), static_cast<int>(i % 290) - 155);
    wrong += !same(round_to_format(y, fp32, Rounding::kNearestEven), static_cast<float>(y));
  }
  CHECK(wrong == 0);
}

TEST_CASE("stochastic rounding goes up exactly when the random fraction is below the distance") {
  for (const char* name : {"fp16", "bf16", "fp8_e4m3", "e2m1"}) {
    const Format& f = find_format(name);
    const RandomStream stream(9, RandomPurpose::kTest);
    int wrong = 0;
    for (uint64_t i = 0; i < 20000; ++i) {
      const int e = static_cast<int>(stream.bits(2 * i) % 60) - 40;
      const double x = std::ldexp(1 + stream.uniform(2 * i + 1), std::min(e, f.emax - 1));
      const double low = round_to_format(x, f, Rounding::kTowardZero);
      const double high = round_to_format(x, f, Rounding::kUp);
      const double p = oracle_probability_up(x, f);
      const auto threshold = static_cast<uint64_t>(std::ldexp(p, 32));  // cut to 32 bits
      if (threshold > 0) {
        const auto last_up = static_cast<uint32_t>(threshold - 1);
        wrong += round_to_format(x, f, Rounding::kStochastic, last_up) != high;
      }
      const auto first_down = static_cast<uint32_t>(threshold);
      wrong += round_to_format(x, f, Rounding::kStochastic, first_down) != low;
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("stochastic bits are Philox's, and differ by every part of the key") {
  const StochasticKey key{.seed = 0x123456789abcdef0, .stream = 3, .site = 17, .step = 5};
  // By the documented layout: element 64 * 2 + 16 * 3 + 5 is word 3 of counter 2 * 16 + 5.
  const auto array = philox4x32({0x9abcdef0, 0x12345678}, {3, 17, 5, 0});
  const auto words = philox4x32({array[0], array[1]}, {37, 0, array[2], array[3]});
  CHECK(stochastic_bits(key, 64 * 2 + 16 * 3 + 5) == words[3]);
  StochasticKey others[4] = {key, key, key, key};
  ++others[0].seed;
  ++others[1].stream;
  ++others[2].site;
  ++others[3].step;
  int equal = 0;
  for (uint64_t i = 0; i < 1000; ++i) {
    for (const StochasticKey& other : others) {
      equal += stochastic_bits(other, i) == stochastic_bits(key, i);
    }
    equal += stochastic_bits(key, i + 1) == stochastic_bits(key, i);
  }
  CHECK(equal == 0);  // 5000 chances of 2^-32
}

TEST_CASE("round to odd keeps a later rounding right") {
  const RandomStream stream(13, RandomPurpose::kTest);
  const Format &fp32 = find_format("fp32"), &fp16 = find_format("fp16");
  int wrong = 0, inexact = 0;
  for (uint64_t i = 0; i < 100000; ++i) {
    const auto draw = [&](uint64_t n) {
      const double m = 1 + stream.uniform(3 * i + n);
      const int e = static_cast<int>(stream.bits(3 * i + 2) >> (8 * n) & 0x7f) - 64;
      return (stream.bits(3 * i + n) & 1) != 0 ? std::ldexp(m, e) : -std::ldexp(m, e);
    };
    const double x = draw(0), y = draw(1);
    const Exact exact = Exact(x) + Exact(y);
    const double odd = add_round_to_odd(x, y);
    const double error = (exact - Exact(odd)).sign();
    inexact += error != 0;
    wrong += error != 0 && (std::bit_cast<uint64_t>(odd) & 1) == 0;
    for (const Format* f : {&fp32, &fp16}) {
      wrong += round_to_format(odd, *f, Rounding::kNearestEven) !=
               oracle_round(exact, *f, Rounding::kNearestEven);
    }
  }
  CHECK(wrong == 0);
  CHECK(inexact > 10000);  // the cases that matter did occur
}

TEST_CASE("names of roundings resolve to their rows") {
  for (const RoundingInfo& row : roundings()) {
    CHECK(find_rounding(row.name) == row.rounding);
    CHECK(to_string(row.rounding) == row.name);
    CHECK(!row.help.empty());
  }
  CHECK_THROWS_WITH_AS(find_rounding("nearest_evn"),
                       "rounding 'nearest_evn': unknown; did you mean 'nearest_even'?", InputError);
}
