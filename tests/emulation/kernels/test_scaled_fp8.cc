// Scales of whole tensors: trajectories computed by hand, in FP32 arithmetic.
#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "emulation/kernels/active_kernels.h"
#include "emulation/kernels/scaled_fp8.h"
#include "src/core/error.h"

using namespace lockstep;

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kLargest = std::numeric_limits<float>::max();

const Format& e4m3() {
  return find_format("fp8_e4m3+saturate");
}

// The scale after each amax.
std::vector<float> trajectory(const DelayedScaling& scaling, const std::vector<float>& amaxes,
                              const Format& format = e4m3()) {
  DelayedScaleState state;
  std::vector<float> scales;
  for (const float amax : amaxes) {
    state = delayed_scale_update(state, amax, format, scaling);
    scales.push_back(state.scale);
    CHECK(state.history.size() <= static_cast<size_t>(scaling.history_length));
  }
  return scales;
}

}  // namespace

TEST_CASE("current scaling: max_finite / amax in FP32, and its special cases") {
  CHECK(current_scale(448, e4m3(), {}) == 1);
  CHECK(current_scale(3, e4m3(), {}) == 448.0f / 3.0f);
  CHECK(current_scale(3, find_format("fp8_e5m2"), {}) == 57344.0f / 3.0f);
  CHECK(current_scale(3, e4m3(), {.power_of_two = true}) == 128);  // 149.3
  CHECK(current_scale(0, e4m3(), {}) == 1);
  CHECK(current_scale(kInf, e4m3(), {}) == 1);
  CHECK(current_scale(kNan, e4m3(), {}) == 1);
  CHECK(current_scale(0x1p-140f, e4m3(), {}) == kLargest);  // 448 * 2^140
  CHECK(current_scale(0x1p-140f, e4m3(), {.power_of_two = true}) == 0x1p127f);
  CHECK(current_scale(0, e4m3(), {.amax_epsilon = 0.5f}) == 896);
  CHECK(current_scale(2, e4m3(), {.amax_epsilon = 0.5f}) == 224);
}

TEST_CASE("delayed scaling: the largest of a short history") {
  const DelayedScaling scaling{.history_length = 3, .choice = AmaxChoice::kMax};
  // 7 counts for three steps, then 3.5, then 1.
  CHECK(trajectory(scaling, {7, 3.5f, 1, 1, 1, 1}) ==
        std::vector<float>{64, 64, 64, 128, 448, 448});
  // A zero changes neither the scale nor the history, so 7 stays one step longer.
  CHECK(trajectory(scaling, {7, 0, 3.5f, 1, 1}) == std::vector<float>{64, 64, 64, 64, 128});
  // An infinity keeps the scale while it is in the history; NaN is left out of the maximum.
  CHECK(trajectory(scaling, {7, kInf, 1, 1, 1}) == std::vector<float>{64, 64, 64, 64, 448});
  CHECK(trajectory(scaling, {7, kNan, 14, 1}) == std::vector<float>{64, 64, 32, 32});
  CHECK(trajectory(scaling, {kNan, 0, kInf}) == std::vector<float>{1, 1, 1});
}

TEST_CASE("delayed scaling: the most recent amax, margins, and the ends of FP32") {
  const DelayedScaling recent{.history_length = 4, .choice = AmaxChoice::kMostRecent};
  CHECK(trajectory(recent, {7, 3.5f, kInf, kNan, 0, 14}) ==
        std::vector<float>{64, 128, 128, 128, 128, 32});
  const DelayedScaling margin{.history_length = 1, .choice = AmaxChoice::kMax, .margin = 2};
  CHECK(trajectory(margin, {7, 3}) == std::vector<float>{16, 112.0f / 3.0f});
  CHECK(trajectory(margin, {7}, find_format("fp8_e5m2")) == std::vector<float>{2048});
  CHECK(trajectory(recent, {0x1p-149f, kLargest}) ==
        std::vector<float>{kLargest, 448.0f / kLargest});
  CHECK_THROWS_AS(trajectory({.history_length = 0}, {1}), std::logic_error);
}

TEST_CASE("delayed scaling: the contents of a long history") {
  DelayedScaleState state;
  const DelayedScaling scaling{.history_length = 1024};
  for (int step = 1; step <= 3000; ++step) {
    state = delayed_scale_update(state, static_cast<float>(step == 1000 ? 1 << 20 : step), e4m3(),
                                 scaling);
    if (step == 999) CHECK(state.scale == 448.0f / 999);
    if (step >= 1000 && step < 2024) CHECK(state.scale == 448.0f / (1 << 20));
    if (step == 2024) CHECK(state.scale == 448.0f / 2024);
  }
  CHECK(state.history.size() == 1024);
  CHECK(state.history.front() == 1977);
  CHECK(state.history.back() == 3000);
}

TEST_CASE("scaled rounding: three FP32 operations and the statistics of the scaled values") {
  const std::vector<float> values = {3, -1, 0.001f, 5, kNan, -0.0f};
  std::vector<float> after(values.size());
  TensorStats stats;
  const float scale = current_scale(3, e4m3(), {});
  quantize_scaled(active_kernels(), values, after, scale, {.format = &e4m3()}, &stats);
  // 1 * 149.33 -> 144 or 152, step 16 above 128: 144; 0.149 -> 0.15625 - 2^-6 = 0.140625 or
  // 0.15625, the nearer 0.15625; 5 * 149.3 saturates.
  const float inverse = 1 / scale;
  CHECK(after[0] == 448 * inverse);
  CHECK(after[1] == -144 * inverse);
  CHECK(after[2] == 0.15625f * inverse);
  CHECK(after[3] == 448 * inverse);
  CHECK(std::bit_cast<uint32_t>(after[4]) == 0x7fc00000);
  CHECK(std::bit_cast<uint32_t>(after[5]) == 0x80000000);
  CHECK(stats.saturated == 1);
  CHECK(stats.nan == 1);
  CHECK(stats.abs_max == 5 * scale);
  CHECK_THROWS_AS(quantize_scaled(active_kernels(), values, after, 0, {.format = &e4m3()}, nullptr),
                  std::logic_error);
}

TEST_CASE("names of amax choices resolve to their rows") {
  for (const AmaxChoiceInfo& row : amax_choices()) CHECK(find_amax_choice(row.name) == row.choice);
  CHECK_THROWS_WITH_AS(find_amax_choice("mostrecent"),
                       doctest::Contains("did you mean 'most_recent'?"), InputError);
}
