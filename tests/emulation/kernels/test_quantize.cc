// The fused pass: every instruction set against the scalar kernel, bit for bit, statistics
// included, and stochastic rounding against its probabilities.
#include "emulation/kernels/quantize.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <stdexcept>

#include "emulation/format/oracle.h"
#include "emulation/kernels/active_kernels.h"
#include "emulation/kernels/kernel_set.h"
#include "emulation/kernels/reduction.h"
#include "emulation/kernels/scalar/kernels.h"
#include "emulation/kernels/scalar/rounding/quantize.h"
#include "tests/emulation/kernels/quantize_cases.h"

using namespace lockstep;

namespace {

// One kernel on one array in every way of calling it; "" or the difference from scalar.
std::string check_kernel(const VectorKernels& kernel, const std::vector<float>& data,
                         const QuantizeSpec& spec, const std::vector<float>& expected,
                         const TensorStats& expected_stats) {
  const auto count = static_cast<int64_t>(data.size());
  TensorStats stats;
  std::vector<float> out(data.size());
  kernel.quantize(data.data(), out.data(), count, spec, &stats);
  std::string wrong = difference(expected, out) + difference(expected_stats, stats);
  if (!wrong.empty()) return "out of place: " + wrong;
  out = data;
  kernel.quantize(out.data(), out.data(), count, spec, &stats);
  wrong = difference(expected, out) + difference(expected_stats, stats);
  if (!wrong.empty()) return "in place: " + wrong;
  out = data;
  kernel.quantize(out.data(), out.data(), count, spec, nullptr);
  wrong = difference(expected, out);
  if (!wrong.empty()) return "without statistics: " + wrong;
  QuantizeSpec counting = spec;
  counting.counts_only = true;
  out = data;
  kernel.quantize(out.data(), out.data(), count, counting, &stats);
  wrong = difference(expected, out) + difference(expected_stats.counts(), stats.counts());
  if (!wrong.empty()) return "counts only: " + wrong;
  for (TensorStats* const measured : {&stats, static_cast<TensorStats*>(nullptr)}) {
    std::vector<uint8_t> fills(data.size());
    const auto fill = [&](int64_t begin, int64_t end) {
      for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
        out[i] = data[i];
        ++fills[i];
      }
    };
    out.assign(data.size(), 1);
    kernel.fill_and_quantize(fill, out.data(), count, spec, measured);
    wrong = difference(expected, out);
    if (measured != nullptr) wrong += difference(expected_stats, stats);
    if (std::ranges::count(fills, 1) != std::ssize(fills)) wrong += "not every element once";
    if (!wrong.empty()) return "filled: " + wrong;
  }
  return "";
}

}  // namespace

TEST_CASE("vector kernels equal the scalar kernel for every format, rounding and size") {
  const RestoreThreads restore;
  const auto kernels = vector_kernels();
  const int64_t sizes[] = {1, 31, 32, 33, 1000, 4096, 4097, 70000};
  int64_t cases = 0;
  for (const Format* format : tested_formats()) {
    for (const RoundingInfo& mode : roundings()) {
      for (const int64_t size : sizes) {
        // The largest arrays test the joins of chunks: only with two formats and two roundings.
        const bool large = size > 2 * kReductionBlock;
        const bool nearest = mode.rounding == Rounding::kNearestEven;
        if (large && !(nearest || mode.rounding == Rounding::kStochastic)) continue;
        if (large && format->name != "fp16" && format->name != "bf16") continue;
        for (const Content content : {Content::kTame, Content::kWild, Content::kLarge,
                                      Content::kUsual, Content::kNormal, Content::kBits}) {
          const auto data = make_data(size, *format, content, static_cast<uint32_t>(cases));
          QuantizeSpec spec{format, mode.rounding, {.seed = 7, .stream = 1, .site = 3, .step = 9}};
          std::vector<float> expected(data.size());
          TensorStats stats;
          set_thread_count(1);
          scalar_quantize(data.data(), expected.data(), size, spec, &stats);
          for (const VectorKernels& kernel : kernels) {
            for (const int threads : {1, 2}) {
              if (threads == 2 && !large) continue;  // one chunk: the pool is not used
              set_thread_count(threads);
              const std::string wrong = check_kernel(kernel, data, spec, expected, stats);
              ++cases;
              if (wrong.empty()) continue;
              INFO(kernel.name << " " << format->name << " " << mode.name << " size " << size);
              CHECK(wrong == "");
            }
          }
        }
      }
    }
  }
  CHECK(cases > 2000 * static_cast<int64_t>(kernels.size()));
}

enum class Detail { kNothing, kCounts, kAll };

// Stores of large arrays bypass the caches: another path through the same pass.
TEST_CASE("vector kernels equal the scalar kernel on an array larger than the caches") {
  constexpr size_t kCount = (size_t{9} << 20) + 3;  // 36 MiB and an incomplete row
  std::vector<float> before(kCount), want(kCount);
  for (size_t i = 0; i < kCount; ++i) {
    before[i] = (static_cast<float>(i % 8191) - 4095.5f) * (i % 3 == 0 ? 0x1p-20f : 0x1p-8f);
  }
  const auto count = static_cast<int64_t>(kCount);
  for (const char* name : {"fp16", "bf16"}) {
    const QuantizeSpec spec{.format = &find_format(name)};
    TensorStats want_stats;
    scalar_kernels().f32.quantize(before.data(), want.data(), count, spec, &want_stats);
    for (const KernelSet* set : available_kernel_sets()) {
      if (set == &scalar_kernels()) continue;
      for (const Detail detail : {Detail::kAll, Detail::kCounts, Detail::kNothing}) {
        // That path needs whole cache lines.
        constexpr size_t kLine = 64;
        std::vector<float> storage(kCount + kLine / sizeof(float));
        void* place = storage.data();
        size_t space = storage.size() * sizeof(float);
        auto* after = static_cast<float*>(std::align(kLine, kCount * sizeof(float), place, space));
        REQUIRE(after != nullptr);
        TensorStats stats;
        QuantizeSpec how = spec;
        how.counts_only = detail == Detail::kCounts;
        set->f32.quantize(before.data(), after, count, how,
                          detail == Detail::kNothing ? nullptr : &stats);
        CAPTURE(name);
        CAPTURE(set->name);
        CHECK(std::memcmp(after, want.data(), kCount * sizeof(float)) == 0);
        if (detail == Detail::kCounts) {
          CHECK(difference(want_stats.counts(), stats.counts()) == "");
        }
        if (detail != Detail::kAll) continue;
        CHECK(stats.bits_hash == want_stats.bits_hash);
        CHECK(stats.inexact == want_stats.inexact);
        CHECK(stats.sum_sq == want_stats.sum_sq);
        CHECK(stats.round_err_sq == want_stats.round_err_sq);
        CHECK(stats.exponent_histogram == want_stats.exponent_histogram);
      }
    }
  }
}

TEST_CASE("measuring alone: nothing is stored, after == before") {
  const Format &fp16 = find_format("fp16"), &fp64 = find_format("fp64");
  const auto kernels = vector_kernels();
  for (const Format* format : {&fp16, &fp64}) {
    const auto data = make_data(5000, fp16, Content::kWild, 77);
    QuantizeSpec spec{.format = format, .measure_only = true};
    TensorStats scalar;
    scalar_quantize<float>(data.data(), nullptr, 5000, spec, &scalar);
    CHECK(scalar.inexact == 0);
    CHECK(scalar.to_zero == 0);
    CHECK(scalar.to_infinity == 0);
    CHECK(scalar.round_err_sq == 0);
    CHECK(scalar.count == 5000);
    for (const VectorKernels& kernel : kernels) {
      TensorStats stats;
      kernel.quantize(data.data(), nullptr, 5000, spec, &stats);
      CHECK(difference(scalar, stats) == "");
    }
  }
  // The statistics of values of the format are those of rounding them once more.
  std::vector<float> values = make_data(5000, fp16, Content::kWild, 78);
  const QuantizeSpec round{.format = &fp16};
  scalar_quantize(values.data(), values.data(), 5000, round, nullptr);
  TensorStats again;
  scalar_quantize(values.data(), values.data(), 5000, round, &again);
  CHECK(difference(observe<float>(active_kernels(), values, fp16), again) == "");
}

TEST_CASE("sets without a kernel for filled arrays take two passes, and the units' own rounding") {
  constexpr int64_t kCount = 70000;
  const Format& format = find_format("fp16");
  const auto data = make_data(kCount, format, Content::kWild, 79);
  std::vector<float> expected(data.size());
  TensorStats expected_stats;
  scalar_quantize(data.data(), expected.data(), kCount, {&format}, &expected_stats);
  int without = 0;
  for (const KernelSet* set : available_kernel_sets()) {
    CAPTURE(set->name);
    std::vector<float> out(data.size());
    TensorStats stats;
    const auto fill = [&](int64_t begin, int64_t end) {
      std::copy(data.begin() + begin, data.begin() + end, out.begin() + begin);
    };
    fill_and_quantize<float>(*set, fill, out, {&format}, &stats);
    CHECK(difference(expected, out) + difference(expected_stats, stats) == "");
    CHECK_THROWS_AS(fill_and_quantize<float>(*set, fill, out,
                                             {.format = &format, .measure_only = true}, &stats),
                    std::logic_error);
    const bool takes_two = set->f32.fill_and_quantize == nullptr;
    without += takes_two ? 1 : 0;
    if (set->name == "cpu") CHECK(takes_two);
  }
  CHECK(without >= 1);  // the scalar set
}

TEST_CASE("a float container refuses fp64") {
  float x = 1;
  const QuantizeSpec spec{.format = &find_format("fp64")};
  CHECK_THROWS_AS(scalar_quantize(&x, &x, 1, spec, nullptr), std::logic_error);
  for (const VectorKernels& kernel : vector_kernels()) {
    CHECK_THROWS_AS(kernel.quantize(&x, &x, 1, spec, nullptr), std::logic_error);
  }
}

TEST_CASE("arrays of no elements") {
  TensorStats s;
  s.count = 5;
  for (const KernelSet* set : available_kernel_sets()) {
    set->f32.quantize(nullptr, nullptr, 0, {.format = &find_format("fp16")}, &s);
    CHECK(difference(s, TensorStats()) == "");
    ErrorStats e;
    e.compared = 5;
    set->f32.compare(nullptr, nullptr, 0, 1, find_format("fp16"), &e);
    CHECK(difference(e, ErrorStats()) == "");
  }
}

TEST_CASE("stochastic rounding is unbiased within 5 sigma, for every format") {
  const int64_t n = 100000;
  uint32_t site = 0;
  for (const Format* format : tested_formats()) {
    const Format& f = *format;
    if (f.precision > 11) continue;  // the points below lie between two values
    // Between 1 and the next, below the smallest normal number, below the smallest number.
    const double step = std::ldexp(1.0, f.emin - f.precision + 1);
    for (const double x : {1 + 0.3 * f.machine_epsilon(), -1.5 - 0.7 * f.machine_epsilon(),
                           f.min_normal() - 0.6 * step, -0.2 * step}) {
      const float input = static_cast<float>(x);
      const std::vector<float> data(n, input);
      std::vector<float> out(n);
      TensorStats s;
      quantize<float>(active_kernels(), data, out,
                      {&f, Rounding::kStochastic, {.seed = 1, .site = ++site}}, &s);
      REQUIRE(s.count == n);
      const double low = round_to_format(input, f, Rounding::kTowardZero);
      const double high = round_to_format(input, f, x > 0 ? Rounding::kUp : Rounding::kDown);
      INFO(f.name << " at " << x);
      if (low == high) {  // both flushed
        CHECK(std::abs(x) < f.min_normal());
        CHECK(s.to_zero == n);
        continue;
      }
      const double p = oracle_probability_up(input, f);
      const auto ups = std::count(out.begin(), out.end(), static_cast<float>(high));
      const auto downs = std::count(out.begin(), out.end(), static_cast<float>(low));
      CHECK(ups + downs == n);
      CHECK(p > 0.1);
      CHECK(p < 0.9);
      CHECK(std::abs(static_cast<double>(ups) - p * n) < 5 * std::sqrt(n * p * (1 - p)));
    }
  }
  CHECK(site > 60);
}
