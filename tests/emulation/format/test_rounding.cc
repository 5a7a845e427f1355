// Tests the definition of rounding and every kernel against exact arithmetic, at the places where
// results can change: every code, every midpoint, the overflow and underflow thresholds, and the
// FP32 neighbours of each.
#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "emulation/format/format.h"
#include "emulation/format/oracle.h"
#include "emulation/format/rounding.h"
#include "emulation/format/stochastic.h"
#include "emulation/kernels/active_kernels.h"
#include "emulation/kernels/kernel_set.h"
#include "emulation/kernels/reduction.h"
#include "emulation/kernels/scalar/rounding/float_rounder.h"
#include "src/core/error.h"
#include "src/core/random.h"

using namespace lockstep;

namespace {

constexpr float kFloatInfinity = std::numeric_limits<float>::infinity();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

bool same(double a, double b) {
  return std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(b);
}

// Positive floats around the places where rounding to `f` changes.
std::vector<float> interesting_floats(const Format& f) {
  std::vector<double> places = {0x1p-149, 0x1p-126, 0x1.fffffep127};
  const std::vector<double> values = nonnegative_values(f);
  for (size_t i = 0; i + 1 < values.size(); ++i) {
    places.push_back(values[i]);
    places.push_back(values[i] / 2 + values[i + 1] / 2);
  }
  // Overflow: half a place beyond max_finite, one place, far beyond.
  const double place = ulp(f.max_finite, f);
  for (const double beyond : {0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0}) {
    places.push_back(f.max_finite + beyond * place);
  }
  // Underflow: where a flush or a rounding to the smallest normal number begins.
  const double step = std::ldexp(1.0, f.emin - f.precision + 1);
  for (const double below : {0.0, 0.25, 0.5, 0.75, 1.0}) {
    places.push_back(f.min_normal() - below * step);
  }
  std::vector<float> floats;
  for (const double x : places) {
    const float nearest = static_cast<float>(x);
    floats.push_back(nearest);
    floats.push_back(std::nextafter(nearest, kFloatInfinity));
    floats.push_back(std::nextafter(nearest, -kFloatInfinity));
  }
  std::erase_if(floats, [](float x) { return !(x > 0) || std::isinf(x); });
  return floats;
}

// Results of round_to_format and of every kernel set that differ from the oracle's.
struct Tally {
  int64_t checked = 0, wrong = 0;
  double first_wrong = 0;

  void add(double x, double got, double expected) {
    ++checked;
    if (same(got, expected)) return;
    if (wrong++ == 0) first_wrong = x;
  }
};

// Zero, infinity and NaN. The oracle needs no place for them.
void check_specials(const Format& f, Rounding mode, Tally& tally) {
  for (const double x : {0.0, kInfinity, std::nan("")}) {
    for (const double signed_x : {x, -x}) {
      const double expected = oracle_round(signed_x, f, mode);
      tally.add(signed_x, round_to_format(signed_x, f, mode), expected);
      for (const KernelSet* set : available_kernel_sets()) {
        const float before = static_cast<float>(signed_x);
        std::vector<float> after(kReductionLanes, before);  // a whole row, for the vectors
        set->f32.quantize(after.data(), after.data(), kReductionLanes, {&f, mode}, nullptr);
        for (const float y : after) tally.add(signed_x, y, expected);
      }
    }
  }
}

// Doubles with magnitudes that no float has.
void check_doubles(const Format& f, Rounding mode, Tally& tally) {
  const double step = std::ldexp(1.0, f.emin - f.precision + 1);
  for (const double x : {0x1p-1074, 0x1p-1022, 1e300, 0x1p1023, f.max_finite * (1 + 0x1p-52),
                         f.min_normal() * (1 - 0x1p-53), f.min_normal() - step / 2 * (1 - 0x1p-40),
                         step / 2, std::nextafter(step / 2, 1.0)}) {
    if (x == 0 || std::isinf(x)) continue;  // FP64's own limits
    const OraclePlace place{Exact(x), f};
    for (const double signed_x : {x, -x}) {
      tally.add(signed_x, round_to_format(signed_x, f, mode), place.round(mode, signed_x < 0));
    }
  }
}

Tally check_every_code(const Format& f) {
  std::vector<float> x = interesting_floats(f);
  const size_t count = x.size();
  std::vector<OraclePlace> places;
  places.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    places.emplace_back(Exact(x[i]), f);
    x.push_back(-x[i]);
  }
  Tally tally;
  std::vector<float> y(x.size());
  std::vector<double> expected(x.size());
  for (const RoundingInfo& mode : roundings()) {
    if (mode.rounding == Rounding::kStochastic) continue;
    check_specials(f, mode.rounding, tally);
    check_doubles(f, mode.rounding, tally);
    for (size_t i = 0; i < x.size(); ++i) {
      expected[i] = places[i % count].round(mode.rounding, i >= count);
      tally.add(x[i], round_to_format(x[i], f, mode.rounding), expected[i]);
    }
    for (const KernelSet* set : available_kernel_sets()) {
      set->f32.quantize(x.data(), y.data(), static_cast<int64_t>(x.size()), {&f, mode.rounding},
                        nullptr);
      for (size_t i = 0; i < x.size(); ++i) tally.add(x[i], y[i], expected[i]);
    }
  }
  return tally;
}

void expect_all_right(const Format& f) {
  const Tally tally = check_every_code(f);
  CAPTURE(f.name);
  CAPTURE(tally.first_wrong);
  CHECK(tally.wrong == 0);
  // Every code but the ends has two neighbourhoods of three floats, two signs, six modes, each by
  // the definition and by every kernel set. FP32's own smallest numbers may coincide.
  const auto codes = static_cast<int64_t>(nonnegative_values(f).size());
  const auto ways = 1 + static_cast<int64_t>(available_kernel_sets().size());
  CHECK(tally.checked >= (codes - 2) * 2 * 3 * 2 * 6 * ways);
}

}  // namespace

TEST_CASE("oracle: the neighbours of a point are neighbours in the list of values") {
  // The oracle's arithmetic against the list: between two listed values it gives one of them.
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
  int formats_checked = 0;
  for (const Format& f : formats()) {
    if (f.storage_bits() > 16) continue;
    expect_all_right(f);
    ++formats_checked;
  }
  CHECK(formats_checked == 9);
}

TEST_CASE("rounding equals the oracle around every code: every e<E>m<M> of 16 bits or fewer") {
  int formats_checked = 0;
  for (int e = 2; e <= 8; ++e) {
    for (int m = 1; 1 + e + m <= 16; ++m) {
      expect_all_right(find_format("e" + std::to_string(e) + "m" + std::to_string(m)));
      ++formats_checked;
    }
  }
  CHECK(formats_checked == 70);
}

TEST_CASE("rounding equals the oracle around every code: every suffix") {
  for (const char* base : {"fp16", "bf16", "fp8_e4m3", "fp8_e5m2", "fp8_e4m3fnuz", "fp6_e3m2",
                           "fp6_e2m3", "fp4_e2m1", "e4m3", "e2m1", "e7m2"}) {
    for (const char* overflow : {"", "+saturate"}) {
      for (const char* subnormals : {"", "+flush_in", "+flush_out"}) {
        expect_all_right(find_format(std::string(base) + overflow + subnormals));
      }
    }
  }
}

TEST_CASE("suffixes of formats too long to list: fp32 and fp64") {
  Tally tally;
  for (const char* base : {"fp32", "fp64", "tf32", "e7m23"}) {
    for (const char* overflow : {"", "+saturate"}) {
      for (const char* subnormals : {"", "+flush_in", "+flush_out"}) {
        const Format& f = find_format(std::string(base) + overflow + subnormals);
        for (const RoundingInfo& mode : roundings()) {
          if (mode.rounding == Rounding::kStochastic) continue;
          check_doubles(f, mode.rounding, tally);
          if (!f.is_fp64() && contains(find_format("fp32"), f)) {
            check_specials(f, mode.rounding, tally);
          }
        }
      }
    }
  }
  CAPTURE(tally.first_wrong);
  CHECK(tally.wrong == 0);
  CHECK(tally.checked > 3000);
}

TEST_CASE("the float kernel's rounding is the definition's: random bits, every mode") {
  const RandomStream stream(21, RandomPurpose::kTest);
  for (const char* name : {"fp32+saturate", "fp32+flush_in", "tf32", "fp16", "fp16+flush_out",
                           "bf16", "bf16+flush_out", "fp8_e4m3", "fp8_e5m2fnuz", "fp6_e2m3",
                           "fp4_e2m1", "e7m23", "e7m1", "e2m23", "e8m22"}) {
    const Format& f = find_format(name);
    for (const RoundingInfo& mode : roundings()) {
      const FloatRounder rounder(f, mode.rounding);
      Tally tally;
      with_rounding(mode.rounding, [&]<Rounding kMode>() {
        for (uint64_t i = 0; i < 20000; ++i) {
          // Every second one is within the format's range, its smallest numbers included.
          uint32_t bits = stream.bits(2 * i);
          const int e = f.emin - f.precision - 3 + static_cast<int>(bits % 40);
          float x = std::bit_cast<float>(bits);
          if (i % 2 == 0) x = std::ldexp(1 + static_cast<float>(bits >> 9) * 0x1p-23f, e);
          if (i % 4 == 0) x = -x;
          const uint32_t random = stream.bits(2 * i + 1);
          tally.add(x, rounder.round<kMode>(x, random), round_to_format(x, f, kMode, random));
        }
      });
      INFO(f.name << " " << mode.name << " at " << tally.first_wrong);
      CHECK(tally.wrong == 0);
      CHECK(tally.checked == 20000);
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

TEST_CASE("suffixes checked by hand") {
  constexpr auto kEven = Rounding::kNearestEven;
  const Format &in = find_format("fp16+flush_in"), &out = find_format("fp16+flush_out");
  const double below = 0x1.fffp-15;  // a quarter of a step below 2^-14: rounds up to 2^-14
  CHECK(same(round_to_format(-below, in, kEven), -0.0));
  CHECK(same(round_to_format(-below, out, kEven), -0x1p-14));
  CHECK(same(round_to_format(0x1.ff8p-15, out, kEven), 0.0));  // a subnormal
  CHECK(same(round_to_format(0x1p-14, in, kEven), 0x1p-14));
  CHECK(same(round_to_format(1e-30, in, Rounding::kUp), 0.0));
  CHECK(same(round_to_format(1e-30, out, Rounding::kUp), 0.0));

  const Format& saturating = find_format("fp8_e5m2+saturate");
  CHECK(round_to_format(1e9, saturating, kEven) == 57344);
  CHECK(round_to_format(-kInfinity, saturating, Rounding::kUp) == -57344);
  CHECK(std::isnan(round_to_format(std::nan(""), saturating, kEven)));
  CHECK(round_to_format(kInfinity, find_format("fp4_e2m1"), kEven) == 6);
  CHECK(std::isnan(round_to_format(std::nan(""), find_format("fp4_e2m1"), kEven)));

  const Format& fnuz = find_format("fp8_e4m3fnuz");
  CHECK(same(round_to_format(-0.0, fnuz, kEven), 0.0));
  CHECK(same(round_to_format(-0x1p-11, fnuz, kEven), 0.0));  // a tie, and 0 is even
  CHECK(round_to_format(247.999, fnuz, kEven) == 240);
  CHECK(std::isnan(round_to_format(248, fnuz, kEven)));
  CHECK(round_to_format(248, fnuz, Rounding::kTowardZero) == 240);
  CHECK(std::isnan(round_to_format(kInfinity, fnuz, Rounding::kTowardZero)));
}

TEST_CASE("every NaN gives the same NaN") {
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
  for (const char* name : {"fp16", "bf16", "fp8_e4m3", "fp8_e5m2fnuz", "fp6_e2m3", "e2m1"}) {
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
  CHECK(inexact > 10000);  // enough cases tested a second rounding
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
