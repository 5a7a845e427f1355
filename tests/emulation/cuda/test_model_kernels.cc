// The kernels of software lanes on devices, run by the host and by a GPU if there is one: sums and
// events must have the bits of the scalar kernels, for every layout.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "emulation/kernels/active_kernels.h"
#include "emulation/kernels/cuda/model_gemm.h"
#include "emulation/kernels/scalar/products/gemm.h"
#include "src/core/error.h"
#include "tests/emulation/cuda/device_products.h"

namespace lockstep {
namespace {

// C, and its events.
using Result = std::pair<std::vector<float>, std::vector<uint8_t>>;

template <typename Gemm>
Result with_events(const Accumulator& accumulator, const Format& fa, const Format& fb,
                   const Layout& s, bool special, bool wants_events, Gemm gemm) {
  constexpr uint32_t kRare = 24;
  std::vector<uint8_t> events(static_cast<size_t>(s.m * s.n));
  std::vector<float> c =
      product(accumulator, fa, fb, s, special ? kRare : 0, gemm, wants_events ? &events : nullptr);
  return {std::move(c), std::move(events)};
}

auto on(cuda::Device& device) {
  return [&device](const GemmArgs<float>& args) {
    cuda::model_gemm(args, scalar_gemm<float>, device, 0);
  };
}

// The host, and the GPU where there is one.
std::vector<cuda::Device*> devices() {
  std::vector<cuda::Device*> all{&cuda::host_device()};
  if (cuda::gpu_device() != nullptr) all.push_back(cuda::gpu_device());
  return all;
}

bool same_result(const Result& x, const Result& y) {
  return x.second == y.second && same_bits(x.first, y.first);
}

constexpr const char* kTypes[] = {"fp16", "bf16", "tf32", "fp8_e4m3", "fp8_e5m2"};

}  // namespace

TEST_CASE("model kernels: every tensor core's sums and events are the scalar kernel's") {
  const Layout layouts[] = {{1, 1, 1, false, false, false, 0},
                            {3, 5, 33, false, true, true, 0},
                            {5, 2, 40, true, false, false, 3},
                            {2, 7, 129, true, true, true, 1},
                            {16, 8, 16, false, false, true, 0}};
  int rows = 0;
  uint8_t events = 0;
  for (const Accumulator& accumulator : accumulators()) {
    if (accumulator.kind != AccumulatorKind::kAlignedBlocks) continue;
    CAPTURE(accumulator.name);
    for (const char* a : kTypes) {
      for (const char* b : kTypes) {
        const Format &fa = find_format(a), &fb = find_format(b);
        if (!accumulator.takes(fa) || !accumulator.takes(fb)) continue;
        ++rows;
        REQUIRE(cuda::is_model_sum(accumulator, &fa, &fb));
        for (const Layout& s : layouts) {
          for (const bool special : {false, true}) {
            const Result want =
                with_events(accumulator, fa, fb, s, special, true, scalar_gemm<float>);
            for (cuda::Device* device : devices()) {
              const int64_t before = cuda::model_products(*device);
              REQUIRE(same_result(with_events(accumulator, fa, fb, s, special, true, on(*device)),
                                  want));
              REQUIRE(cuda::model_products(*device) == before + 1);
            }
            for (const uint8_t event : want.second) events |= event;
          }
        }
      }
    }
  }
  CHECK(rows >= 50);
  CHECK(events == 15);  // each kind of event occurred
}

TEST_CASE("model kernels: switched rules, and sums without events") {
  for (const char* name : {"hopper_bf16+negative_zero", "hopper_fp16_acc16", "hopper_fp8_promoted",
                           "hopper_fp8_mma", "ampere_tf32+nearest_away", "hopper_tf32_wmma"}) {
    CAPTURE(name);
    const Accumulator* found = &find_accumulator(name);
    const Format& format = *found->operands.front();
    const Layout s{9, 11, 70, true, false, true, 2};
    for (const bool special : {false, true}) {
      const Result want =
          with_events(*found, format, format, s, special, false, scalar_gemm<float>);
      for (cuda::Device* device : devices()) {
        CHECK(
            same_result(with_events(*found, format, format, s, special, false, on(*device)), want));
      }
    }
  }
}

TEST_CASE("model kernels: fused chains, with and without events") {
  for (const char* name : {"fp32_fused", "fp16", "bf16"}) {
    CAPTURE(name);
    const Accumulator& accumulator = find_accumulator(name);
    const Format& format = find_format(accumulator.format->is_fp32() ? "fp32" : name);
    REQUIRE(cuda::is_model_sum(accumulator, &format, &format));
    for (const Layout& s : {Layout{1, 1, 1, false, false, false, 0},
                            {7, 9, 65, true, false, true, 2},
                            {4, 6, 33, false, true, false, 0}}) {
      for (const bool special : {false, true}) {
        for (const bool events : {false, true}) {
          const Result want =
              with_events(accumulator, format, format, s, special, events, scalar_gemm<float>);
          for (cuda::Device* device : devices()) {
            CHECK(same_result(
                with_events(accumulator, format, format, s, special, events, on(*device)), want));
          }
        }
      }
    }
  }
}

TEST_CASE("model kernels: other sums and small products stay with the software kernel") {
  const Format& format = find_format("fp16");
  const Layout s{4, 4, 16, false, true, false, 0};
  const int64_t before = cuda::model_products(cuda::host_device());
  for (const Accumulator& accumulator : accumulators()) {
    if (cuda::is_model_sum(accumulator, &format, &format)) continue;
    CAPTURE(accumulator.name);
    CHECK((accumulator.kind != AccumulatorKind::kFusedChain || accumulator.format->is_fp64()));
    if (accumulator.operands.empty() && accumulator.kind == AccumulatorKind::kKahan) {
      CHECK(same_result(
          with_events(accumulator, format, format, s, false, false, on(cuda::host_device())),
          with_events(accumulator, format, format, s, false, false, scalar_gemm<float>)));
    }
  }
  with_events(find_accumulator("hopper_fp16"), format, format, s, false, false,
              [](const GemmArgs<float>& args) {
                cuda::model_gemm(args, scalar_gemm<float>, cuda::host_device(), 4 * 4 * 16 + 1);
              });
  CHECK(cuda::model_products(cuda::host_device()) == before);
}

TEST_CASE("model kernels: the host's build checks every access") {
  float words[4] = {};
  cuda::BlockProduct kernel{};
  kernel.arrays.m = 2, kernel.arrays.n = 1, kernel.arrays.k = 2;
  kernel.arrays.a = {{words, 4, 4}, 2, 1};
  kernel.arrays.b = {{words, 1, 4}, 2, 1};  // two factors would be needed
  kernel.arrays.c = {words, 2, 4};
  kernel.block = find_accumulator("hopper_tf32").block;
  kernel.a = kernel.b = {.precision = 11, .emin = -126, .storage_bits = 19, .ignored_bits = 13};
  CHECK_THROWS_WITH_AS(kernel(0), "kernel: element 1 of 1", std::logic_error);
}

TEST_CASE("model kernels: a software device that is unknown or absent is refused") {
  CHECK(software_device().empty());
  CHECK_THROWS_AS(select_software_device("gpu"), InputError);
  if (cuda::gpu_device() == nullptr) CHECK_THROWS_AS(select_software_device("cuda"), InputError);
  select_software_device("cuda-host");
  CHECK(software_device() == "cuda-host");
  const bool replaces_floats = software_engine_kernels().f32.gemm != active_kernels().f32.gemm;
  const bool keeps_doubles = software_engine_kernels().f64.gemm == active_kernels().f64.gemm;
  CHECK(replaces_floats);
  CHECK(keeps_doubles);
  select_software_device("");
  CHECK(&software_engine_kernels() == &active_kernels());
}

}  // namespace lockstep
