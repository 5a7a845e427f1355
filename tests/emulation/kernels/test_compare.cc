// The distance of a lane's array from the reference's: every instruction set against the scalar
// kernel, and the sums by hand.
#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <stdexcept>

#include "emulation/kernels/active_kernels.h"
#include "emulation/kernels/compare_stats.h"
#include "emulation/kernels/reduction.h"
#include "emulation/kernels/scalar/rounding/quantize.h"
#include "tests/emulation/kernels/quantize_cases.h"

using namespace lockstep;

namespace {

// Each of `kernels` on one and two threads against the scalar kernel.
void check_kernels(const std::vector<VectorKernels>& kernels, const std::vector<float>& lane,
                   const std::vector<float>& reference, const Format& format, double scale) {
  const int64_t size = std::ssize(lane);
  ErrorStats expected;
  scalar_compare(lane.data(), reference.data(), size, scale, format, &expected);
  for (const VectorKernels& kernel : kernels) {
    for (const int threads : {1, 2}) {
      set_thread_count(threads);
      ErrorStats error;
      kernel.compare(lane.data(), reference.data(), size, scale, format, &error);
      const std::string wrong = difference(expected, error);
      if (wrong.empty()) continue;
      INFO(kernel.name << " " << format.name << " size " << size << " scale " << scale);
      CHECK(wrong == "");
    }
  }
}

// What a quantize pass finds that compares on the way, against the two passes.
struct OnTheWay {
  std::vector<float> rounded;
  TensorStats stats;
  ReferenceComparison comparison;
};

OnTheWay round_and_compare(const VectorKernels& kernel, const std::vector<float>& lane,
                           const std::vector<float>& reference, QuantizeSpec spec, double scale,
                           bool in_place) {
  const int64_t size = std::ssize(lane);
  OnTheWay found;
  found.rounded = lane;
  found.comparison = {.reference = reference.data(), .scale = scale, .format = spec.format};
  spec.comparison = &found.comparison;
  const float* before = in_place ? found.rounded.data() : lane.data();
  kernel.quantize(before, found.rounded.data(), size, spec, &found.stats);
  return found;
}

}  // namespace

TEST_CASE("a comparison on the way finds what a pass of its own finds, for all that round") {
  const RestoreThreads restore;
  int64_t done = 0, left = 0;
  for (const VectorKernels& kernel : vector_kernels()) {
    uint32_t index = 0;
    for (const char* name : {"fp16", "bf16", "fp32", "e5m2", "e4m3fn", "tf32"}) {
      const Format& format = find_format(name);
      for (const int64_t size : {1, 33, 4097, 70000, 600000}) {
        if (size > 2 * kReductionBlock && format.name != "fp16") continue;
        for (const bool measure_only : {false, true}) {
          const QuantizeSpec spec{.format = &format, .measure_only = measure_only};
          const double scale = index % 2 == 0 ? 1 : 1024;
          const Content content = index % 3 == 0 ? Content::kWild : Content::kTame;
          auto lane = make_data(size, format, content, ++index);
          const auto reference = make_data(size, format, Content::kTame, index + 1000);
          if (measure_only) scalar_quantize(lane.data(), lane.data(), size, {&format}, nullptr);
          std::vector<float> rounded = lane;
          TensorStats stats;
          ErrorStats error;
          scalar_quantize(lane.data(), rounded.data(), size, spec, &stats);
          scalar_compare(rounded.data(), reference.data(), size, scale, format, &error);
          for (const int threads : {1, 3}) {
            for (const bool in_place : {false, true}) {
              set_thread_count(threads);
              CAPTURE(kernel.name);
              CAPTURE(name);
              CAPTURE(size);
              const OnTheWay found =
                  round_and_compare(kernel, lane, reference, spec, scale, in_place);
              CHECK(difference(stats, found.stats) == "");
              CHECK(std::memcmp(found.rounded.data(), rounded.data(),
                                sizeof(float) * lane.size()) == 0);
              ++(found.comparison.done ? done : left);
              if (found.comparison.done) CHECK(difference(error, found.comparison.error) == "");
            }
          }
        }
      }
    }
  }
  CHECK(left == 0);
  CHECK((done > 0) == !vector_kernels().empty());
}

TEST_CASE("comparison with the reference: vector kernels equal the scalar kernel") {
  const RestoreThreads restore;
  const auto kernels = vector_kernels();
  uint32_t index = 0;
  for (const Format* format : tested_formats()) {
    for (const int64_t size : {1, 31, 32, 33, 1000, 4097, 70000}) {
      if (size > 2 * kReductionBlock && format->name != "fp16") continue;
      for (const double scale : {1.0, 65536.0, 0x1p-20, 3.0, 1e-30}) {
        for (const Content content : {Content::kTame, Content::kWild, Content::kBits}) {
          ++index;
          const auto reference = make_data(size, *format, content, index);
          auto lane = reference;
          const auto noise = make_data(size, *format, content, index + 1000000);
          for (size_t i = 0; i < lane.size(); ++i) {
            lane[i] = i % 3 == 0 ? noise[i] : lane[i] * static_cast<float>(scale) * 1.001f;
          }
          check_kernels(kernels, lane, reference, *format, scale);
        }
      }
    }
  }
  CHECK(index > 1000);
}

TEST_CASE("comparison of finite numbers: all exponents, zeros and subnormal numbers") {
  const RestoreThreads restore;
  const auto kernels = vector_kernels();
  constexpr uint32_t kInfinityBits = 0x7f800000;
  const auto finite = [](std::vector<float> values) {
    for (size_t i = 0; i < values.size(); ++i) {
      auto bits = std::bit_cast<uint32_t>(values[i]);
      if (i % 7 == 0) bits &= 0x807fffff;                        // subnormal
      if (i % 11 == 0) bits &= 0x80000000;                       // zero
      if (i % 13 == 0) bits = (bits & 0x80000000) | 0x00ffffff;  // just below 2^-125
      if ((bits & kInfinityBits) == kInfinityBits) bits ^= 0x00800000;
      values[i] = std::bit_cast<float>(bits);
    }
    return values;
  };
  uint32_t index = 0;
  for (const Format* format : tested_formats()) {
    for (const double scale : {1.0, 2.0, 65536.0, 0x1p127, 0x1p128, 0.5}) {
      index += 2;
      const std::vector<float> reference = finite(make_data(1037, *format, Content::kBits, index));
      check_kernels(kernels, finite(make_data(1037, *format, Content::kBits, index + 1)), reference,
                    *format, scale);
      check_kernels(kernels, reference, reference, *format, scale);
    }
    // Half of it would round up to the least normal float, whose ulp may be another.
    const std::vector<float> edge(32, std::bit_cast<float>(0x00ffffffu));
    check_kernels(kernels, std::vector<float>(32, 0x1p-126f), edge, *format, 0.5);
  }
  CHECK(index > 100);
}

TEST_CASE("comparison: the largest error, which floats cannot tell from others") {
  const RestoreThreads restore;
  const auto kernels = vector_kernels();
  constexpr int64_t kSize = 3 * 1024 + 5;
  for (const char* name : {"fp32", "bf16", "fp16"}) {
    for (const double scale : {1.0, 2.0, 65536.0}) {
      for (const int64_t largest : {0, 17, 1023, 1024, 2999, 3070, 3075}) {
        // |e| is 1 - 2^-26, and once 1 + 2^-26 (1 + 2^-26, and once 1 + 1.5 2^-26).
        std::vector<float> lane, reference;
        for (int64_t i = 0; i < kSize; ++i) {
          const float sign = i % 3 == 0 ? -1.0f : 1.0f;
          lane.push_back(sign * static_cast<float>(scale));
          reference.push_back(i == largest ? -sign * 0x1p-26f : sign * 0x1p-26f);
        }
        check_kernels(kernels, lane, reference, find_format(name), scale);
        for (size_t i = 0; i < lane.size(); ++i) {
          const bool is_largest = static_cast<int64_t>(i) == largest;
          reference[i] = std::copysign(is_largest ? 0x1.8p-26f : 0x1p-26f, -lane[i]);
        }
        check_kernels(kernels, lane, reference, find_format(name), scale);
      }
    }
  }
  // Differences that are infinite in float; the largest is the last.
  std::vector<float> lane(64, 0.0f), reference(64, 0.0f);
  size_t at = 0;
  for (const float large : {0x1.2p127f, 0x1.8p127f, 1.0f, 0x1.fp127f}) {
    lane[at] = large;
    reference[at] = -large;
    at += 16;
  }
  check_kernels(kernels, lane, reference, find_format("fp32"), 1);
}

TEST_CASE("comparison: blocks of different magnitudes, added in float or in double") {
  const RestoreThreads restore;
  const auto kernels = vector_kernels();
  constexpr int64_t kSize = 6 * kReductionBlock + 100;  // the last block ends with half a group
  std::mt19937 random(1);
  const auto draw = [&](int least, int most) {
    return static_cast<int>(random() % static_cast<unsigned>(most - least + 1)) + least;
  };
  for (const char* name :
       {"fp32", "bf16", "fp16", "bf16+flush_out", "fp8_e4m3fnuz+flush_out", "e2m1", "e8m1"}) {
    for (const double scale : {1.0, 2.0, 65536.0, 0x1p100, 0x1p127, 0x1p128, 0.5}) {
      for (int round = 0; round < 12; ++round) {
        std::vector<float> lane, reference;
        int exponent = 0;  // of the lane's numbers
        for (int64_t i = 0; i < kSize; ++i) {
          if (i % kReductionBlock == 0) exponent = draw(-150, 70);
          const double sign = draw(0, 1) == 0 ? 1 : -1;
          const double x =
              sign * std::ldexp(1 + draw(0, 1 << 20) * 0x1p-20, exponent - draw(0, 30));
          const double error = round % 3 == 0 ? 0 : std::ldexp(x, -draw(1, 24));
          lane.push_back(draw(0, 9) == 0 ? 0.0f : static_cast<float>(x));
          reference.push_back(draw(0, 9) == 0 ? 0.0f : static_cast<float>((x + error) / scale));
          // Blocks whose reference is far below or above the lane.
          if (exponent % 7 == 0) reference.back() *= exponent % 2 == 0 ? 0x1p-70f : 0x1p70f;
        }
        if (round % 4 == 1) {
          lane[static_cast<size_t>(draw(0, kSize - 1))] = kInfiniteFloat;
          reference[static_cast<size_t>(draw(0, kSize - 1))] = std::nanf("");
        }
        if (round % 4 == 2) lane.back() = 0x1p90f;  // after the last group
        if (round % 4 == 3) {                       // a block of zeros
          for (size_t i = 0; i < kReductionBlock; ++i) lane[i] = reference[i] = 0;
        }
        check_kernels(kernels, lane, reference, find_format(name), scale);
      }
    }
  }
  std::vector<float> lane(kReductionBlock, 1.5f), reference(kReductionBlock, 1.0f);
  // The last number whose block is added in float, and the first in double.
  for (const float largest : {0x1.fffffep59f, 0x1.000002p60f}) {
    lane[5] = largest;
    check_kernels(kernels, lane, reference, find_format("fp32"), 1);
  }
}

TEST_CASE("comparison: errors of many ulps, where the reference is zero") {
  const RestoreThreads restore;
  const auto kernels = vector_kernels();
  for (const char* name : {"fp32", "bf16", "fp16"}) {
    for (const double scale : {1.0, 32768.0}) {
      // In units of 2^-126 they exceed a float's range.
      std::vector<float> lane(kReductionBlock, 1000), reference(kReductionBlock, 0.0f);
      for (size_t i = 0; i < lane.size(); i += 100) lane[i] = 1000 + static_cast<float>(i);
      check_kernels(kernels, lane, reference, find_format(name), scale);
      reference[17] = 1;  // the block can be guessed
      check_kernels(kernels, lane, reference, find_format(name), scale);
    }
  }
}

TEST_CASE("comparison: the factors of a block, by its largest magnitudes") {
  const auto rule = [](float lane, float reference, double scale) {
    return find_compare_rule(std::bit_cast<uint32_t>(lane), std::bit_cast<uint32_t>(reference),
                             scale);
  };
  for (const float moderate : {0.0f, 0x1p-20f, 1.0f, 0x1.fp59f}) {
    const CompareRule r = rule(moderate, 0, 4);
    CHECK((r.grouped && r.lane_factor == 1 && r.reference_factor == 4 && r.unscale == 0x1p-4));
  }
  CHECK_FALSE(rule(0x1p60f, 0, 4).grouped);
  CHECK_FALSE(rule(0, 0x1p58f, 4).grouped);
  CHECK_FALSE(rule(kInfiniteFloat, 0, 4).grouped);
  CHECK(rule(0x1.8p-21f, 0, 4).lane_factor == 0x1p21f);
  CHECK(rule(0, 0x1.8p-23f, 4).lane_factor == 0x1p21f);
  CHECK(rule(0, 0x1.8p-23f, 4).reference_factor == 0x1p23f);
  CHECK(rule(0x1p-149f, 0, 0x1p27).lane_factor == 0x1p100f);  // s scale stays finite
  CHECK(rule(1.0f, 0x1p-62f, 4).grouped);
  CHECK_FALSE(rule(1.0f, 0x1p-63f, 4).grouped);  // its squares would underflow
  CHECK_FALSE(may_group_pairs(3));
  CHECK_FALSE(may_group_pairs(0.5));
}

TEST_CASE("comparison: sums are within the declared error of exact ones") {
  constexpr int64_t kSize = 2 * kReductionBlock;
  constexpr double kUnit = 0x1p-24, kGamma = 6 * kUnit / (1 - 6 * kUnit);
  std::mt19937 random(2);
  for (const double scale : {1.0, 4096.0}) {
    std::vector<float> lane, reference;
    double err_sq = 0, dot = 0, magnitudes = 0, ref_sq = 0;
    for (int64_t i = 0; i < kSize; ++i) {
      const float r = static_cast<float>(static_cast<int>(random() % 2001) - 1000) * 0x1.8p-20f;
      const float x = static_cast<float>(r * scale * (1 + (random() % 100) * 1e-4));
      lane.push_back(x), reference.push_back(r);
      const double exact = x / scale - r;
      err_sq += exact * exact, dot += x / scale * r, ref_sq += static_cast<double>(r) * r;
      magnitudes += std::abs(x / scale * r);
    }
    const ErrorStats e =
        compare<float>(active_kernels(), lane, reference, scale, find_format("fp16"));
    CHECK(std::abs(e.err_sq - err_sq) <= kGamma * err_sq);
    CHECK(std::abs(e.dot_ref - dot) <= kGamma * magnitudes);
    CHECK(std::abs(e.ref_sq - ref_sq) <= kGamma * ref_sq);
    CHECK(e.err_sq != err_sq);  // it is not formed in double
  }
}

TEST_CASE("comparison checked by hand") {
  const Format& fp16 = find_format("fp16");
  const float lane[] = {2.0f, 4.0f, kInfiniteFloat, -8.0f};
  const float reference[] = {1.0f, 2.5f, 1.0f, -4.0f};
  const ErrorStats e = compare<float>(active_kernels(), lane, reference, 2.0, fp16);
  CHECK(e.compared == 3);
  CHECK(e.err_sq == 0.25);  // 0, -0.5, 0
  CHECK(e.dot_ref == 1 + 2 * 2.5 + 16);
  CHECK(e.ref_sq == 1 + 6.25 + 16);
  CHECK(e.err_max_ulps == 1.0 / 0x1p-8);  // 0.5 * 2 at 5: ulp 2^(2-10)
  CHECK_THROWS_AS((compare<float>(active_kernels(), lane, reference, 0.0, fp16)), std::logic_error);
}
