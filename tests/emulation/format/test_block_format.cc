// Tests block formats: names, the scale of a block and the rounding of its elements against exact
// arithmetic, hand-checked values, and every kernel set against the scalar definition.
#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "emulation/format/oracle.h"
#include "emulation/format/whole_line.h"
#include "emulation/kernels/active_kernels.h"
#include "emulation/kernels/block_quantize.h"
#include "emulation/kernels/kernel_set.h"
#include "emulation/kernels/scalar/kernels.h"
#include "emulation/kernels/scalar/rounding/block_quantize.h"
#include "emulation/kernels/simd/rounding/block_plan.h"
#include "src/core/error.h"
#include "src/core/parallel.h"
#include "src/core/random.h"

using namespace lockstep;

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr uint8_t kE8m0Nan = 0xff, kE4m3Nan = 0x7f;

// Every row with every scale rule, and elements that do not saturate or have no subnormals.
std::vector<const BlockFormat*> all_variants() {
  std::vector<const BlockFormat*> list;
  for (const BlockFormat& row : block_formats()) {
    if (row.scale == ScaleFormat::kE4m3) {
      list.push_back(&row);
      continue;
    }
    for (const ScaleRuleInfo& rule : scale_rules()) {
      list.push_back(&find_block_format(row.name + "+" + std::string(rule.name)));
    }
  }
  for (const char* name : {"mxfp8_e4m3+nan", "mxfp8_e5m2+infinity+round", "mxfp8_e4m3+flush_out",
                           "mxfp6_e2m3+flush_in+ceil", "nvfp4+flush_out"}) {
    list.push_back(&find_block_format(name));
  }
  return list;
}

// Blocks of many kinds: around one magnitude, over many binades, with an element whose magnitude
// decides at a rule's boundary, with zeros, at both ends of float's range, with NaN and infinity.
std::vector<float> make_values(int64_t count, uint32_t index) {
  const RandomStream stream(31, RandomPurpose::kTest, index);
  constexpr float kTops[] = {1.0f,   1.5f,  1.75f,    0x1.c00002p0f, 0x1.bffffep0f,
                             1.875f, 1.25f, 0x1.ep0f, 0x1.dfffffp0f, 0x1.f80002p0f,
                             1.375f, 2.0f,  0x1.fp0f, 0x1.effffep0f, 0x1.fffffep0f};
  constexpr int kKindRun = 48;  // longer than a block: blocks of one kind and mixed ones
  std::vector<float> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) {
    const uint64_t kind_key = i / kKindRun + (uint64_t{1} << 40);
    const int kind = static_cast<int>(stream.bits(kind_key) % 12);
    const int center = static_cast<int>(stream.bits(kind_key) >> 8 & 0x3f) - 32;
    const uint32_t a = stream.bits(2 * i), b = stream.bits(2 * i + 1);
    const float sign = (a & 1) != 0 ? -1.0f : 1.0f;
    const float fraction = 1 + static_cast<float>(a >> 9) * 0x1p-23f;
    int e = center + static_cast<int>(b % 6);
    if (kind == 1) e = center - static_cast<int>(b % 40);
    if (kind == 2) e = 120 + static_cast<int>(b % 8);
    if (kind == 3) e = -126 - static_cast<int>(b % 23);
    if (kind == 4) e = -126 + static_cast<int>(b % 12);
    float x = sign * std::ldexp(fraction, e);
    if (kind >= 8 && b % 8 == 0) x = sign * std::ldexp(kTops[b / 8 % std::size(kTops)], center + 6);
    if (b % 16 == 3) x = sign * 0.0f;
    if (kind == 5) x = sign * 0.0f;
    if (kind == 6 && b % 40 == 0) x = (a & 2) != 0 ? kInf * sign : std::copysign(kNan, sign);
    if (kind == 7) x = std::bit_cast<float>(a ^ b << 7);
    values[i] = x;
  }
  return values;
}

float finite_abs_max(const std::vector<float>& values) {
  float largest = 0;
  for (const float x : values) {
    if (std::isfinite(x)) largest = std::max(largest, std::abs(x));
  }
  return largest;
}

// The scale's exponent by the text of each rule, in double: exact for floats.
int rule_exponent(float amax, const BlockFormat& format) {
  const Format& element = *format.element;
  int exponent = std::ilogb(amax) - element.emax;
  switch (format.rule) {
    case ScaleRule::kFloor:
      break;
    case ScaleRule::kCeil:
      while (std::ldexp(1.0, exponent + element.emax) < amax) ++exponent;
      break;
    case ScaleRule::kRceil:
      while (element.max_finite * std::ldexp(1.0, exponent) < amax) ++exponent;
      break;
    case ScaleRule::kRound: {
      Format wide = element;  // the element's precision without its range
      wide.emin = -1000;
      wide.emax = 1000;
      wide.max_finite = 0x1p1000;
      exponent = std::ilogb(oracle_round(amax, wide, Rounding::kNearestAway)) - element.emax;
      break;
    }
  }
  return std::clamp(exponent, -127, 127);
}

bool same_bits(float a, float b) {
  return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b);
}

struct Result {
  std::vector<float> after;
  BlockScales scales;
  TensorStats stats;
};

Result run(const KernelSet& set, const std::vector<float>& values, const BlockShape& shape,
           const BlockQuantizeSpec& spec, bool measure) {
  Result r;
  r.after = values;  // in place
  const bool nv = spec.format->scale == ScaleFormat::kE4m3;
  const float amax = set.f32.finite_abs_max(values.data(), shape.count());
  const float tensor = nv ? tensor_scale_of(amax, *spec.format) : 1.0f;
  r.scales.tensor_scale = tensor;
  r.scales.codes.resize(static_cast<size_t>(shape.scale_count(spec.format->block_size)));
  if (measure) {
    set.f32.quantize_blocks(r.after.data(), r.after.data(), shape, spec, tensor, &r.stats, nullptr);
  }
  r.after = values;
  set.f32.quantize_blocks(values.data(), r.after.data(), shape, spec, tensor, nullptr,
                          r.scales.codes.data());
  return r;
}

std::string stats_difference(const TensorStats& a, const TensorStats& b) {
  const ErrorStats none;
  for (const Statistic& row : statistics()) {
    const bool equal = row.kind() == StatisticKind::kCount
                           ? row.count(a, none) == row.count(b, none)
                           : std::bit_cast<uint64_t>(row.moment(a, none)) ==
                                 std::bit_cast<uint64_t>(row.moment(b, none));
    if (!equal) return std::string(row.name);
  }
  if (a.bits_hash != b.bits_hash) return "bits_hash";
  return a.exponent_histogram == b.exponent_histogram ? "" : "exponent_histogram";
}

std::vector<float> quantized(const std::vector<float>& values, const BlockFormat& format,
                             BlockScales* scales = nullptr, TensorStats* stats = nullptr) {
  std::vector<float> after(values.size());
  const BlockShape shape{1, static_cast<int64_t>(values.size()), 1};
  quantize_blocks<float>(active_kernels(), values, after, shape, {.format = &format}, stats,
                         scales);
  return after;
}

}  // namespace

TEST_CASE("block formats: names and suffixes resolve to one object") {
  for (const BlockFormat& row : block_formats()) {
    CHECK(&find_block_format(row.name) == &row);
    CHECK(names_block_format(row.name));
    for (const std::string& alias : row.aliases) CHECK(&find_block_format(alias) == &row);
    CHECK(row.element->overflow == OverflowRule::kSaturate);
    CHECK(!row.help.empty());
    CHECK(!row.source.empty());
  }
  for (const BlockFormat* format : all_variants())
    CHECK(&find_block_format(format->name) == format);
  CHECK(&find_block_format("mxfp8_e4m3+floor+saturate") == &find_block_format("mxfp8"));
  CHECK(&find_block_format("MXFP8-E4M3+nan+ceil") == &find_block_format("mxfp8+ceil+nan"));
  CHECK(find_block_format("mxfp8+ceil+nan").name == "mxfp8_e4m3+ceil+nan");
  CHECK(find_block_format("mxfp8+flush_out").name == "mxfp8_e4m3+flush_out");
  CHECK(find_block_format("mxfp8+flush_out").element->overflow == OverflowRule::kSaturate);
  CHECK(!names_block_format("fp8_e4m3+saturate"));
  CHECK(find_block_format("mxfp6_e3m2").bits_per_element() == 6.25);
  CHECK(find_block_format("nvfp4").bits_per_element() == 4.5);
  CHECK_THROWS_WITH_AS(find_block_format("mxfp9"), doctest::Contains("did you mean 'mxfp"),
                       InputError);
  CHECK_THROWS_WITH_AS(find_block_format("mxfp4+flor"), doctest::Contains("did you mean 'floor'?"),
                       InputError);
  CHECK_THROWS_WITH_AS(find_block_format("nvfp4+floor+flor"),
                       doctest::Contains("scale rules are for power-of-two scales"), InputError);
  CHECK_THROWS_WITH_AS(find_block_format("mxfp4+floor+ceil"),
                       doctest::Contains("second scale rule"), InputError);
}

TEST_CASE("block formats: blocks checked by hand") {
  BlockScales scales;
  // amax 7 = 1.75 * 2^2: floor gives 2^(2-2) = 1, so 7 is beyond 6; the other rules give 2.
  const std::vector<float> x = {7, -2.5f, 0.2f, 0.25f};
  const std::vector<float> by_one = {6, -2, 0, 0}, by_two = {8, -2, 0, 0};
  CHECK(quantized(x, find_block_format("mxfp4"), &scales) == by_one);
  CHECK(scales.codes == std::vector<uint8_t>{127});
  for (const char* rule : {"ceil", "rceil", "round"}) {
    CHECK(quantized(x, find_block_format(std::string("mxfp4+") + rule), &scales) == by_two);
    CHECK(scales.codes == std::vector<uint8_t>{128});
  }
  // 6 = 1.5 * 2^2 fits the scale 1 exactly, and only ceil goes up.
  for (const auto& [rule, code] : std::vector<std::pair<std::string, int>>{
           {"floor", 127}, {"ceil", 128}, {"rceil", 127}, {"round", 127}}) {
    quantized({6, 1}, find_block_format("mxfp4+" + rule), &scales);
    CHECK(scales.codes[0] == code);
  }
  // E4M3: 460 = 1.796875 * 2^8 rounds to 448 by round, and only ceil and rceil change the scale.
  for (const auto& [rule, code] : std::vector<std::pair<std::string, int>>{
           {"floor", 127}, {"ceil", 128}, {"rceil", 128}, {"round", 127}}) {
    const auto y = quantized({460, 1}, find_block_format("mxfp8+" + rule), &scales);
    CHECK(scales.codes[0] == code);
    CHECK(y[0] == 448);
  }
  // NVFP4: amax 2688 gives a tensor scale of 1; block scales 448 and e4m3(3/6) = 0.5.
  std::vector<float> two_blocks(32, 0.0f);
  two_blocks[0] = -2688;
  two_blocks[1] = 600;  // 600 / 448 = 1.34 -> 1.5
  two_blocks[16] = 3;
  two_blocks[17] = 0.6f;  // 1.2 -> 1
  const auto y = quantized(two_blocks, find_block_format("nvfp4"), &scales);
  CHECK(scales.tensor_scale == 1);
  CHECK(scales.codes == std::vector<uint8_t>{0x7e, 0x30});
  CHECK(std::vector<float>{y[0], y[1], y[16], y[17]} == std::vector<float>{-2688, 672, 3, 0.5f});
}

TEST_CASE("block formats: NaN, infinity, zero, and the ends of the scale") {
  BlockScales scales;
  TensorStats stats;
  for (const BlockFormat* format : all_variants()) {
    CAPTURE(format->name);
    if (format->block_size == kWholeLine) continue;  // no second block
    const uint8_t nan_code = format->scale == ScaleFormat::kE4m3 ? kE4m3Nan : kE8m0Nan;
    for (const float bad : {kNan, -kNan, kInf, -kInf}) {
      std::vector<float> values(static_cast<size_t>(2 * format->block_size), 1.0f);
      values[3] = bad;
      const auto after = quantized(values, *format, &scales, &stats);
      CHECK(scales.codes[0] == nan_code);
      CHECK(scales.codes[1] != nan_code);
      int nans = 0;  // every value of the first block
      for (const float y : after) nans += same_bits(y, kNan);
      CHECK(nans == format->block_size);
      // The bad element, then its neighbours: none disappears silently.
      CHECK(stats.nan == (std::isnan(bad) ? 1 : 0));
      CHECK(stats.to_infinity == static_cast<uint64_t>(format->block_size - 1));
    }
    const std::vector<float> zeros = {0.0f, -0.0f, 0.0f};
    const auto after = quantized(zeros, *format, &scales);
    CHECK(scales.codes[0] == 0);
    CHECK(scales.tensor_scale == 1);
    for (size_t i = 0; i < zeros.size(); ++i) CHECK(same_bits(after[i], zeros[i]));
  }
  const BlockFormat& mx = find_block_format("mxfp8_e4m3");
  CHECK(scale_code(0x1p-149f, 1.0f, mx) == 0);  // far below 2^(8 - 127)
  CHECK(scale_code(0x1p-119f, 1.0f, mx) == 0);
  CHECK(scale_code(0x1p-118f, 1.0f, mx) == 1);
  CHECK(scale_code(std::numeric_limits<float>::max(), 1.0f, mx) == 127 + 127 - 8);
  CHECK(scale_code(0x1p1000, 1.0, mx) == 254);  // a double beyond 2^127 * 448
  CHECK(scale_value(0, mx) == 0x1p-127);
  CHECK(scale_value(254, mx) == 0x1p127);
  CHECK(std::isnan(scale_value(255, mx)));
  // 2^-127 * 2^-9 is a float; half of it is a tie and goes to zero.
  CHECK(quantized({0x1p-136f, 0x1p-137f}, mx) == std::vector<float>{0x1p-136f, 0.0f});
  // The largest float under ceil: 256 * 2^120 does not fit a float.
  CHECK(quantized({std::numeric_limits<float>::max()}, find_block_format("mxfp8+ceil"))[0] == kInf);
  // Tensors so small that their scale, or its product with a block's, is not a float: zeros.
  CHECK(quantized({0x1p-149f, -0x1p-149f}, find_block_format("nvfp4"), &scales) ==
        std::vector<float>{0.0f, -0.0f});
  // The suffix decides about an element beyond the largest.
  CHECK(std::isnan(quantized({480.0f}, find_block_format("mxfp8+nan"))[0]));
  CHECK(quantized({65536.0f - 1}, find_block_format("mxfp8_e5m2+infinity"))[0] == kInf);
  CHECK(quantized({65536.0f - 1}, find_block_format("mxfp8_e5m2"))[0] == 57344);
}

TEST_CASE("block scales and elements equal exact arithmetic") {
  constexpr int64_t kCount = 48 * 200 + 7;
  const std::vector<float> values = make_values(kCount, 1);
  const BlockShape shape{1, kCount, 1};
  int64_t codes = 0, elements = 0, wrong = 0;
  std::string first_wrong;
  for (const BlockFormat* format : all_variants()) {
    const bool nv = format->scale == ScaleFormat::kE4m3;
    for (const RoundingInfo& mode : roundings()) {
      if (mode.rounding == Rounding::kStochastic) continue;
      const BlockQuantizeSpec spec{.format = format, .rounding = mode.rounding};
      const Result got = run(scalar_kernels(), values, shape, spec, false);
      const float tensor = nv ? finite_abs_max(values) / 2688.0f : 1.0f;
      for (size_t b = 0; b < got.scales.codes.size(); ++b) {
        const size_t begin = b * static_cast<size_t>(format->block_size);
        const size_t end = std::min(values.size(), begin + static_cast<size_t>(format->block_size));
        float amax = 0;
        bool special = false;
        for (size_t i = begin; i < end; ++i) {
          special |= !std::isfinite(values[i]);
          amax = std::max(amax, std::abs(values[i]));
        }
        float scale = kNan;
        if (!special && nv) {
          const float wanted = amax == 0 ? 0.0f : amax / 6.0f / tensor;
          const double e4m3 =
              oracle_round(static_cast<double>(wanted), find_format("fp8_e4m3+saturate"),
                           Rounding::kNearestEven);
          scale = static_cast<float>(e4m3) * tensor;
        } else if (!special) {
          scale = amax == 0 ? 0x1p-127f : std::ldexp(1.0f, rule_exponent(amax, *format));
        }
        const float got_scale = block_scale(got.scales.codes[b], tensor, *format);
        ++codes;
        bool right = same_bits(got_scale, scale);
        for (size_t i = begin; i < end && right; ++i) {
          ++elements;
          float expected = kNan;
          if (!special && nv) {
            const double q = scale == 0 ? 0.0
                                        : oracle_round(static_cast<double>(values[i] / scale),
                                                       *format->element, mode.rounding);
            expected = scale == 0 ? std::copysign(0.0f, values[i]) : static_cast<float>(q) * scale;
          } else if (!special) {
            const Exact quotient = Exact(values[i]) * Exact(1, -std::ilogb(scale));
            const double q = values[i] == 0
                                 ? values[i]
                                 : oracle_round(quotient, *format->element, mode.rounding);
            expected = static_cast<float>(q * scale);
            if (q == 0) expected = std::copysign(0.0f, values[i]);
          }
          right = same_bits(got.after[i], expected) ||
                  (std::isnan(got.after[i]) && std::isnan(expected));
        }
        if (!right && wrong++ == 0) {
          first_wrong = format->name + ", " + std::string(mode.name) + ", block " +
                        std::to_string(b) + ", amax " + std::to_string(amax);
        }
      }
    }
  }
  CAPTURE(first_wrong);
  CHECK(wrong == 0);
  CHECK(codes >= 25 * 6 * 300);
  CHECK(elements >= 25 * 6 * kCount * 9 / 10);
}

TEST_CASE("the rule by comparison equals the documents' FP32 division") {
  // rceil: s = 2^ceil(log2(fl(amax / max_finite))), from the bits of the quotient; for every
  // fraction of amax near the boundary and many random ones.
  const RandomStream stream(5, RandomPurpose::kTest);
  int64_t compared = 0, wrong = 0;
  for (const BlockFormat& row : block_formats()) {
    if (row.scale != ScaleFormat::kE8m0) continue;
    const BlockFormat& format = find_block_format(row.name + "+rceil");
    const auto largest = static_cast<float>(format.element->max_finite);
    for (uint64_t i = 0; i < 100000; ++i) {
      float amax = std::bit_cast<float>(stream.bits(i) & 0x7fffffff);
      if (i < 2000) {
        const auto steps = static_cast<uint32_t>(i) - 1000;
        amax = std::bit_cast<float>(std::bit_cast<uint32_t>(largest) + steps);
      }
      if (!std::isfinite(amax) || amax < 0x1p-100f) continue;
      const uint32_t quotient = std::bit_cast<uint32_t>(amax / largest);
      const uint32_t up = (quotient & 0x7fffff) != 0;
      wrong += scale_code(amax, 1.0f, format) != (quotient >> 23) + up;
      ++compared;
    }
  }
  CHECK(wrong == 0);
  CHECK(compared > 5 * 80000);
}

TEST_CASE("the vector kernels' scale codes equal the definition") {
  const RandomStream stream(6, RandomPurpose::kTest);
  int64_t wrong = 0, compared = 0;
  for (const BlockFormat* format : all_variants()) {
    const bool nv = format->scale == ScaleFormat::kE4m3;
    for (const float tensor : {1.0f, 0.37f, 0x1p-140f, 0.0f, 3e38f}) {
      if (tensor != 1.0f && !nv) continue;
      const BlockPlan plan({.format = format}, tensor);
      const auto check = [&](uint32_t bits) {
        const float x = bits > 0x7f7fffff ? kNan : std::bit_cast<float>(bits);
        wrong += plan.code_of(bits) != scale_code(x, tensor, *format);
        ++compared;
      };
      for (uint64_t i = 0; i < 30000; ++i) check(stream.bits(i) & 0x7fffffff);
      // Around every e4m3 value, tie and power of two.
      for (uint32_t field = 0; field < 0x7f8; ++field) {
        for (uint32_t low : {0u, 1u, 0x7ffffu, 0x80000u, 0x80001u, 0xfffffu}) {
          check(field << 20 | low);
          const float times = std::bit_cast<float>(field << 20 | low) * 6.0f * tensor;
          if (std::isfinite(times)) check(std::bit_cast<uint32_t>(times));
        }
      }
    }
  }
  CHECK(wrong == 0);
  CHECK(compared > 25 * 50000);
}

TEST_CASE("block kernels of every instruction set equal the scalar kernel") {
  const int threads_before = thread_count();
  const BlockShape shapes[] = {{1, 1, 1},     {1, 31, 1},    {1, 32, 1},   {5, 33, 1},
                               {3, 1000, 1},  {64, 96, 1},   {1, 31, 0},   {33, 1, 0},
                               {40, 17, 0},   {100, 300, 0}, {32, 256, 0}, {7, 520, 0},
                               {2, 40000, 1}, {70, 1030, 0}};
  int64_t cases = 0, wrong = 0;
  std::string first_wrong;
  for (const KernelSet* set : available_kernel_sets()) {
    if (set->name == "scalar") continue;
    for (const BlockFormat* format : all_variants()) {
      for (const RoundingInfo& mode : roundings()) {
        for (const BlockShape& shape : shapes) {
          const bool large = shape.count() > 4000;
          const bool chosen = format->name == "mxfp8_e4m3" || format->name == "nvfp4" ||
                              format->name == "fp8_e4m3_line" || format->name == "fp8_e5m2_block";
          if (large && !chosen) continue;
          const BlockQuantizeSpec spec{.format = format,
                                       .rounding = mode.rounding,
                                       .key = {.seed = 3, .stream = 1, .site = 4, .step = 1}};
          const auto values = make_values(shape.count(), static_cast<uint32_t>(cases % 7));
          set_thread_count(1);
          const Result expected = run(scalar_kernels(), values, shape, spec, large);
          set_thread_count(2);
          const Result got = run(*set, values, shape, spec, large);
          ++cases;
          std::string what;
          if (expected.scales.codes != got.scales.codes) what = "scale codes";
          if (expected.scales.tensor_scale != got.scales.tensor_scale) what = "tensor scale";
          for (size_t i = 0; i < values.size() && what.empty(); ++i) {
            if (!same_bits(expected.after[i], got.after[i])) what = "element " + std::to_string(i);
          }
          if (large && what.empty()) what = stats_difference(expected.stats, got.stats);
          if (!what.empty() && wrong++ == 0) {
            first_wrong = std::string(set->name) + ", " + format->name + ", " +
                          std::string(mode.name) + ", (" + std::to_string(shape.rows) + ", " +
                          std::to_string(shape.cols) + ") along " + std::to_string(shape.axis) +
                          ": " + what;
          }
        }
      }
    }
  }
  set_thread_count(threads_before);
  CAPTURE(first_wrong);
  CHECK(wrong == 0);
  if (available_kernel_sets().size() > 1) CHECK(cases > 25 * 7 * 9);
}

TEST_CASE("block rounding again changes nothing, and powers of two pass through") {
  for (const BlockFormat* format : all_variants()) {
    if (format->scale == ScaleFormat::kE4m3) continue;  // a rounded scale, not a power of two
    CAPTURE(format->name);
    std::vector<float> values = make_values(48 * 100, 3);
    for (float& x : values) {  // far from the ends of float's range, and finite
      if (!std::isfinite(x) || std::abs(x) > 0x1p60f || std::abs(x) < 0x1p-60f) x = 1;
    }
    const auto once = quantized(values, *format);
    const auto twice = quantized(once, *format);
    std::vector<float> shifted = values;
    for (float& x : shifted) x *= 0x1p17f;
    const auto after_shift = quantized(shifted, *format);
    int64_t changed = 0, not_shifted = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      changed += !same_bits(once[i], twice[i]) && std::isfinite(once[i]);
      not_shifted += !same_bits(once[i] * 0x1p17f, after_shift[i]) && std::isfinite(once[i]);
    }
    // Elements that do not saturate are the exception: an infinite one makes the next scale NaN.
    if (format->element->overflow == OverflowRule::kSaturate) CHECK(changed == 0);
    CHECK(not_shifted == 0);
  }
}

TEST_CASE("stochastic block rounding is unbiased, and keyed by the element's place") {
  // 8 fixes the scale at 2^1; 2.4 lies between 2 and 3, as 1.2 between 1 and 1.5 of e2m1.
  const BlockFormat& format = find_block_format("mxfp4");
  constexpr int64_t kBlocks = 4000, kSize = 32;
  std::vector<float> values(kBlocks * kSize, 2.4f), after(values.size());
  for (size_t i = 0; i < values.size(); i += kSize) values[i] = 8;
  quantize_blocks<float>(
      active_kernels(), values, after, {kBlocks, kSize, 1},
      {.format = &format, .rounding = Rounding::kStochastic, .key = {.seed = 12}}, nullptr,
      nullptr);
  double sum = 0;
  int64_t counted = 0, others = 0;
  for (size_t i = 0; i < after.size(); ++i) {
    if (i % kSize == 0) continue;
    others += after[i] != 2 && after[i] != 3;
    sum += after[i];
    ++counted;
  }
  CHECK(others == 0);
  REQUIRE(counted == kBlocks * (kSize - 1));
  const double sigma = std::sqrt(0.4 * 0.6 / static_cast<double>(counted));
  CHECK(std::abs(sum / static_cast<double>(counted) - 2.4) < 5 * sigma);
}

TEST_CASE("a tensor scale given beforehand is used") {
  const BlockFormat& format = find_block_format("nvfp4");
  const std::vector<float> values = {6, 3, 1, 0.4f};
  std::vector<float> after(values.size());
  BlockScales scales;
  quantize_blocks<float>(active_kernels(), values, after, {1, 4, 1},
                         {.format = &format, .tensor_scale = 0.5}, nullptr, &scales);
  CHECK(scales.tensor_scale == 0.5);
  CHECK(scales.codes == std::vector<uint8_t>{0x40});  // (6 / 6) / 0.5 = 2
  CHECK(after == std::vector<float>{6, 3, 1, 0.5f});
  CHECK_THROWS_AS(
      quantize_blocks<float>(active_kernels(), values, after, {1, 4, 1},
                             {.format = &find_block_format("mxfp4"), .tensor_scale = 0.5}, nullptr,
                             nullptr),
      std::logic_error);
}
