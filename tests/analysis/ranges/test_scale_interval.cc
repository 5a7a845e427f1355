// The interval arithmetic on histograms small enough to check by hand, and its laws on random ones.
#include "analysis/ranges/scale_interval.h"

#include <doctest/doctest.h>

#include <cmath>
#include <random>
#include <vector>

#include "emulation/kernels/kernel_set.h"
#include "emulation/kernels/scalar/kernels.h"
#include "src/core/random.h"

namespace lockstep {
namespace {

constexpr int kBias = 127;

// `counts`: exponent -> how many values.
RangeSample sample(std::string layer, bool scaled,
                   std::initializer_list<std::pair<int, uint64_t>> counts) {
  RangeSample s{.layer = layer,
                .label = layer + " site",
                .role = scaled ? Role::kGradWeight : Role::kActivation,
                .scaled = scaled};
  for (const auto& [exponent, count] : counts) {
    s.histogram[static_cast<size_t>(exponent + kBias)] = count;
  }
  return s;
}

const Format& fp16() {
  return find_format("fp16");  // emax 15, smallest subnormal 2^-24
}

TEST_CASE("a module with the name of an op is a module") {
  RangeSample function = sample("relu", false, {{0, 8}}), other = sample("mul", false, {{0, 8}});
  function.is_function = other.is_function = true;
  const RangeTable table = make_range_table(
      {sample("relu", false, {{0, 8}}), function, other, sample("fc", false, {{0, 8}})},
      find_format("fp16"));
  REQUIRE(table.layers.size() == 3);
  CHECK_FALSE(table.layers[0].is_function);
  CHECK(table.layers[1].is_function);
  CHECK_FALSE(table.layers[2].is_function);
}

TEST_CASE("feasible scales of one tensor, by hand") {
  // Largest 2^-10: may be shifted to 2^(15 - 1), and is kept at every k >= -14. The values of 2^-20
  // have 995 / 5 * 4^-10 of its energy: 0.02 %.
  const ScaleInterval i = feasible_scales(sample("a", true, {{-10, 5}, {-20, 995}}), fp16());
  CHECK(i.hi == 15 - kHeadroomOctaves + 10);
  CHECK(i.lo == -14);
}

TEST_CASE("many small values may become zero: their energy decides") {
  // 4^-5 each: 3 of these have 0.3 % of the energy of the 1 that is kept, 30 have 2.8 %.
  const RangeSample few = sample("a", true, {{-20, 1}, {-25, 3}});
  CHECK(few.lost_energy(0, fp16()) == doctest::Approx(3 / 1027.0));
  CHECK(few.zeroed_share(0, fp16()) == 0);  // between 2^-25 and 2^-24 a value rounds up
  CHECK(few.zeroed_share(-1, fp16()) == 0.75);
  CHECK(few.lost_energy(1, fp16()) == 0);
  CHECK(feasible_scales(few, fp16()).lo == -4);
  CHECK(feasible_scales(sample("a", true, {{-20, 1}, {-25, 30}}), fp16()).lo == 1);
  CHECK(sample("a", true, {}).zeroed_share(0, fp16()) == 0);
  const RangeTable t = make_range_table({sample("a", true, {{10, 1}, {-40, 9}})}, fp16());
  CHECK(t.lost_energy() < 1e-20);
  CHECK(t.zeroed_share() == 0.9);
}

TEST_CASE("the predicted share of zeroed values is the kernel's count, up to ties") {
  std::mt19937 random(3);
  std::normal_distribution<float> octave(-14, 6);
  std::uniform_real_distribution<float> significand(1, 2);
  std::vector<float> values(20000);
  for (float& x : values) x = std::exp2(std::round(octave(random))) * significand(random);
  for (size_t i = 0; i < values.size(); i += 10) values[i] = std::exp2(std::round(octave(random)));
  const auto& kernels = scalar_kernels().f32;
  int64_t zeroed = 0, ties = 0;
  for (const char* name : {"fp16", "fp8_e5m2", "fp8_e4m3"}) {
    const Format& format = find_format(name);
    const auto half_of_least = static_cast<float>(format.min_subnormal() / 2);
    for (int k = -12; k <= 12; ++k) {
      CAPTURE(name);
      CAPTURE(k);
      // The prediction: from the histogram at scale 1.
      RangeSample unscaled = sample("a", true, {});
      std::vector<float> scaled(values.size()), rounded(values.size());
      TensorStats at_one, at_scale;
      const QuantizeSpec spec{&format, Rounding::kNearestEven, {}};
      kernels.quantize(values.data(), rounded.data(), std::ssize(values), spec, &at_one);
      unscaled.histogram = at_one.exponent_histogram;
      const auto predicted = static_cast<uint64_t>(
          std::llround(unscaled.zeroed_share(k, format) * static_cast<double>(values.size())));
      // What the rounding does at that scale.
      uint64_t tied = 0;
      for (size_t i = 0; i < values.size(); ++i) {
        scaled[i] = std::ldexp(values[i], k);
        tied += scaled[i] == half_of_least;
      }
      kernels.quantize(scaled.data(), rounded.data(), std::ssize(scaled), spec, &at_scale);
      CHECK(at_scale.to_zero == predicted + tied);
      zeroed += static_cast<int64_t>(predicted);
      ties += static_cast<int64_t>(tied);
    }
  }
  CHECK(zeroed > 1000);
  CHECK(ties > 100);
}

TEST_CASE("a parameter gradient far below its layer's largest is noise and binds nothing") {
  const auto table = [](int bias_exponent) {
    return make_range_table(
        {sample("conv", true, {{0, 10}}), sample("conv", true, {{bias_exponent, 10}}),
         sample("other", true, {{-40, 10}})},  // of another layer: not noise
        fp16());
  };
  CHECK(table(-kNoiseOctaves).ignored.empty());
  const RangeTable t = table(-kNoiseOctaves - 1);
  REQUIRE(t.ignored.size() == 1);
  CHECK(t.ignored[0] == "conv site");
  CHECK(t.layers[0].scales.lo == kMinScaleExponent);
  CHECK(t.layers.size() == 2);
}

TEST_CASE("zeros do not count as values, FP32 subnormals do") {
  RangeSample s = sample("a", true, {{-127, 10}});
  s.zeros = 10;
  CHECK_FALSE(s.max_exponent().has_value());
  CHECK(feasible_scales(s, fp16()).contains(0));
  s.zeros = 9;
  CHECK(s.max_exponent() == -127);
  CHECK(s.lost_energy(0, fp16()) == 1);
}

TEST_CASE("a trace with infinities or NaN fits no scale") {
  CHECK(feasible_scales(sample("a", true, {{0, 5}, {128, 1}}), fp16()).empty());
}

TEST_CASE("layers are intersected, and the binding ones are named") {
  const RangeTable t =
      make_range_table({sample("low", true, {{-30, 10}}), sample("high", true, {{5, 10}}),
                        sample("high", false, {{3, 10}})},
                       fp16());
  CHECK(t.scales.lo == 6);  // 2^-30 to 2^-24
  CHECK(t.scales.hi == 9);  // 2^5 to 2^14
  CHECK(t.lo_layer == "low");
  CHECK(t.hi_layer == "high");
  CHECK(t.scale_exponent == 9 - kGuardOctaves);
  CHECK(t.layers[1].unscaled_margin == 12);
  CHECK(t.layers[0].reason.empty());
  CHECK(t.layers[1].reason.empty());
}

TEST_CASE("an activation beyond the format keeps its layer in fp32") {
  const RangeTable t =
      make_range_table({sample("big", false, {{15, 1}}), sample("fits", false, {{14, 1}})}, fp16());
  CHECK_FALSE(t.layers[0].reason.empty());
  CHECK(t.layers[1].reason.empty());
  CHECK(t.scale_exponent == 0);  // no gradients: no scale is needed
}

TEST_CASE("a layer that needs another scale than most stays in fp32") {
  const RangeTable t = make_range_table({sample("a", true, {{-30, 10}}),    // needs k >= 6
                                         sample("b", true, {{-31, 10}}),    // needs k >= 7
                                         sample("odd", true, {{12, 10}})},  // needs k <= 2
                                        fp16());
  CHECK(t.layers[0].reason.empty());
  CHECK(t.layers[1].reason.empty());
  CHECK_FALSE(t.layers[2].reason.empty());
  CHECK_FALSE(t.scales.empty());
  CHECK(t.scales.contains(t.scale_exponent));
}

TEST_CASE("a tensor wider than the format fits no scale") {
  const Format& narrow = find_format("fp8_e4m3");  // emax 8, smallest subnormal 2^-9: 17 octaves
  // 2^40 values of 2^-20 have as much energy as one of 2^0.
  const RangeSample wide = sample("a", true, {{0, 1}, {-20, uint64_t{1} << 40}});
  CHECK(feasible_scales(wide, narrow).empty());
  CHECK(make_range_table({wide}, narrow).layers[0].reason.find("no loss scale") !=
        std::string::npos);
}

TEST_CASE("laws: shifting the values shifts the interval; the share falls with the scale") {
  const RandomStream random(7, RandomPurpose::kTest);
  uint64_t n = 0;
  for (int trial = 0; trial < 200; ++trial) {
    RangeSample s = sample("a", true, {});
    RangeSample shifted = s;
    for (int bin = 0; bin < 20; ++bin) {
      const uint64_t count = random.bits(n++) % 100;
      s.histogram[static_cast<size_t>(kBias - 30 + bin)] = count;
      shifted.histogram[static_cast<size_t>(kBias - 30 + bin - 3)] = count;
    }
    const ScaleInterval a = feasible_scales(s, fp16()), b = feasible_scales(shifted, fp16());
    CHECK(b.lo == a.lo + 3);
    CHECK(b.hi == a.hi + 3);
    for (int k = -10; k < 30; ++k) {
      CHECK(s.lost_energy(k + 1, fp16()) <= s.lost_energy(k, fp16()));
    }
    if (!a.empty()) CHECK(a.contains(choose_scale(a)));
  }
}

}  // namespace
}  // namespace lockstep
