// Sums in the fixed shape: scalar against the declared additions one by one, vectors against
// scalar.
#include <doctest/doctest.h>

#include "emulation/kernels/active_kernels.h"
#include "emulation/kernels/reduction.h"
#include "emulation/kernels/scalar/elements/reduce.h"
#include "emulation/kernels/simd/elements/reduce.h"
#include "emulation/kernels/simd/targets.h"
#include "tests/emulation/kernels/kernel_test_util.h"

namespace lockstep {
namespace {

constexpr int64_t kSizes[] = {1, 2, 15, 16, 17, 33, 1000, 4095, 4096};

bool equal_bits(double x, double y) {
  return std::bit_cast<uint64_t>(x) == std::bit_cast<uint64_t>(y);
}

}  // namespace

TEST_CASE("reduce: a block sum is accumulate_add in the declared order") {
  for (const Accumulator& accumulator : accumulators()) {
    for (const DataKind kind : kAllData) {
      for (const int64_t n : kSizes) {
        const auto x = make_data<float>(static_cast<size_t>(n), kind, find_format("fp32"), 4);
        const double want = reduce_fixed<double>(
            n, [&](int64_t i) { return double(x[static_cast<size_t>(i)]); },
            [&](double a, double b) { return accumulate_add(accumulator, a, b); });
        CAPTURE(accumulator.name);
        CAPTURE(static_cast<int>(kind));
        CAPTURE(n);
        REQUIRE(equal_bits(scalar_block_sum(x.data(), n, accumulator), want));
        if (cpu_has_avx2()) REQUIRE(equal_bits(avx2_block_sum(x.data(), n, accumulator), want));
        if (cpu_has_avx512()) REQUIRE(equal_bits(avx512_block_sum(x.data(), n, accumulator), want));
      }
    }
  }
}

TEST_CASE("reduce: few-bit terms, far apart in exponent, are rounded once") {
  // Midpoints of BF16, each after or before a term far below the last bit that the midpoint has in
  // double: the double sum is the midpoint, the exact sum is next to it. (FP16 has no such pairs:
  // 40 binades.)
  constexpr float kMidpoints[] = {257, 259, 385, 511};
  constexpr int kExponents[] = {-60, -90, -126, -149};
  const RandomStream random(21, RandomPurpose::kTest, 0);
  uint64_t moved = 0;  // sums that rounding twice gets wrong
  for (const Accumulator& accumulator : accumulators()) {
    for (uint64_t sample = 0; sample < 200; ++sample) {
      const uint32_t bits = random.bits(sample);
      std::vector<float> x(64);
      const size_t lane = bits % 16;
      const bool joined = (bits & 0x10) != 0;  // in two lanes that the tree joins, or in one
      const size_t other = joined ? (lane + 8) % 16 : lane + 16;
      const float tiny = std::ldexp((bits & 0x20) != 0 ? -1.0f : 1.0f, kExponents[bits >> 8 & 3]);
      const float large =
          (bits & 0x40) != 0 ? -kMidpoints[bits >> 10 & 3] : kMidpoints[bits >> 10 & 3];
      x[lane] = (bits & 0x80) != 0 ? large : tiny;
      x[other] = (bits & 0x80) != 0 ? tiny : large;
      const auto term = [&](int64_t i) { return double(x[static_cast<size_t>(i)]); };
      const auto n = static_cast<int64_t>(x.size());
      const double want = reduce_fixed<double>(
          n, term, [&](double a, double b) { return accumulate_add(accumulator, a, b); });
      const double twice = reduce_fixed<double>(n, term, [&](double a, double b) {
        return round_to_format(a + b, *accumulator.format, Rounding::kNearestEven);
      });
      moved += want != twice;
      CAPTURE(accumulator.name);
      CAPTURE(sample);
      REQUIRE(equal_bits(scalar_block_sum(x.data(), n, accumulator), want));
      for (const KernelSet* set : available_kernel_sets()) {
        float sum = 0;
        set->f32.channel_sum(x.data(), &sum, 1, 1, n, accumulator);
        CAPTURE(set->name);
        REQUIRE(sum == static_cast<float>(want));
      }
    }
  }
  CHECK(moved > 0);
}

// channel_sum of x (outer, channels, inner), addition by addition.
template <typename T>
std::vector<T> channel_sums(const std::vector<T>& x, int64_t outer, int64_t channels, int64_t inner,
                            const Accumulator& accumulator) {
  std::vector<T> sums;
  for (int64_t c = 0; c < channels; ++c) {
    sums.push_back(static_cast<T>(reduce_fixed<double>(
        outer * inner,
        [&](int64_t i) {
          return double(x[static_cast<size_t>((i / inner * channels + c) * inner + i % inner)]);
        },
        [&](double a, double b) { return accumulate_add(accumulator, a, b); })));
  }
  return sums;
}

TEST_CASE_TEMPLATE("reduce: channel_sum walks (o, i) with o outside", T, float, double) {
  // Several blocks; columns (inner 1) in tiles with a rest, of few rows and of several blocks.
  constexpr int64_t kShapes[][3] = {{70, 3, 90}, {5000, 3, 1}, {1, 70, 1},   {15, 67, 1},
                                    {16, 64, 1}, {40, 131, 1}, {4097, 17, 1}};
  for (const auto& [outer, channels, inner] : kShapes) {
    for (const Accumulator& accumulator : accumulators()) {
      for (const DataKind kind : {DataKind::kWide, DataKind::kSpecial}) {
        const auto floats = make_data<float>(static_cast<size_t>(outer * channels * inner), kind,
                                             find_format("fp32"), 5);
        const std::vector<T> x(floats.begin(), floats.end());
        const std::vector<T> want = channel_sums(x, outer, channels, inner, accumulator);
        for (const KernelSet* set : available_kernel_sets()) {
          for (const int threads : {1, 2}) {
            const ThreadCountGuard guard(threads);
            std::vector<T> got(static_cast<size_t>(channels));
            set->of<T>().channel_sum(x.data(), got.data(), outer, channels, inner, accumulator);
            CAPTURE(set->name);
            CAPTURE(accumulator.name);
            CAPTURE(outer);
            CAPTURE(channels);
            CHECK(same_bits(got, want));
          }
        }
      }
    }
  }
}

TEST_CASE("reduce: FP16 sums stagnate and FP32 sums do not") {
  // Each of 16 lanes adds 256 ones exactly, the tree ends at 4096: representable in FP16. Adding
  // 0.25 to a lane that holds 1024, whose neighbour is 1025, changes nothing.
  std::vector<float> x(4096, 0.25f);
  for (size_t i = 0; i < 16; ++i) x[i] = 1024;
  CHECK(scalar_block_sum(x.data(), 4096, find_accumulator("fp16")) == 16 * 1024);
  CHECK(scalar_block_sum(x.data(), 4096, find_accumulator("fp32_fused")) ==
        16 * (1024 + 255 * 0.25));
}

}  // namespace lockstep
