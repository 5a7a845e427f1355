// Products whose results a device rounds and measures before they come back, on the host and on a
// GPU if there is one: every bit and every number must be those of the same product, rounded here
// by the scalar kernel.
#include <cmath>
#include <iterator>
#include <string>
#include <vector>

#include "emulation/kernels/cuda/gemm.h"
#include "emulation/kernels/cuda/kernels.h"
#include "emulation/kernels/cuda/model_gemm.h"
#include "emulation/kernels/cuda/quantize.h"
#include "emulation/kernels/rounded_gemm.h"
#include "emulation/kernels/scalar/kernels.h"
#include "emulation/kernels/scalar/products/gemm.h"
#include "emulation/kernels/scalar/rounding/quantize.h"
#include "tests/emulation/kernels/quantize_cases.h"

namespace lockstep {
namespace {

// The host, and the GPU where there is one.
std::vector<cuda::Device*> multiplying_devices() {
  std::vector<cuda::Device*> all{&cuda::host_device()};
  if (cuda::gpu_device() != nullptr) all.push_back(cuda::gpu_device());
  return all;
}

// A product with its events, and the rounding of its result.
struct RoundedResult {
  std::vector<float> c;
  std::vector<uint8_t> events;
  TensorStats stats;
};

struct RoundedCase {
  const char *accumulator, *factors, *result;
  Rounding rounding = Rounding::kNearestEven;
  bool transposes = false, with_events = false, measures = true, measures_only = false;
};

// (m, n, k) = (37, 131, 33): more than a block of 4096 results, and FP8 pads all extents.
template <typename Run>
RoundedResult rounded_product(const RoundedCase& how, Run run) {
  constexpr int64_t kM = 37, kN = 131, kK = 33;
  const Format &factors = find_format(how.factors), &drawn = find_format("fp8_e4m3");
  auto a = make_data(kM * kK, drawn, Content::kTame, 1);
  auto b = make_data(kK * kN, drawn, Content::kTame, 2);
  const auto to_factors = [&](std::vector<float>& x) {
    x[5] = std::nanf(""), x[40] = kInfiniteFloat;  // a few results are special
    scalar_quantize(x.data(), x.data(), std::ssize(x), {.format = &factors}, nullptr);
  };
  to_factors(a), to_factors(b);
  RoundedResult result{std::vector<float>(kM * kN), std::vector<uint8_t>(kM * kN), {}};
  GemmRounding rounding{
      {&find_format(how.result), how.rounding, {.seed = 7, .stream = 1, .site = 3, .step = 9}},
      how.measures ? &result.stats : nullptr};
  rounding.spec.measure_only = how.measures_only;
  run(GemmArgs<float>{.transpose_a = how.transposes,
                      .transpose_b = how.transposes,
                      .m = kM,
                      .n = kN,
                      .k = kK,
                      .a = a.data(),
                      .lda = how.transposes ? kM : kK,
                      .b = b.data(),
                      .ldb = how.transposes ? kK : kN,
                      .c = result.c.data(),
                      .ldc = kN,
                      .accumulator = &find_accumulator(how.accumulator),
                      .a_format = &factors,
                      .b_format = &factors,
                      .events = how.with_events ? result.events.data() : nullptr},
      rounding);
  return result;
}

// `gemm`, then the scalar kernel.
template <typename Gemm>
auto then_rounded(Gemm gemm) {
  return [gemm](const GemmArgs<float>& args, const GemmRounding& rounding) {
    gemm(args);
    scalar_quantize(args.c, args.c, args.m * args.n, rounding.spec, rounding.stats);
  };
}

std::string rounded_difference(const RoundedResult& x, const RoundedResult& y) {
  return difference(x.c, y.c) + difference(x.stats, y.stats) +
         (x.events == y.events ? "" : " events");
}

constexpr RoundedCase kRoundedCases[] = {
    {"hopper_fp16", "fp16", "fp16"},
    {"hopper_fp16", "fp16", "fp16", Rounding::kStochastic, true},
    {"hopper_fp16", "fp16", "bf16", Rounding::kTowardZero, false, true},
    {"hopper_fp16_acc16", "fp16", "fp16", Rounding::kNearestEven, true, true},
    {"hopper_fp16_acc16", "fp16", "fp8_e5m2", Rounding::kNearestAway},
    {"hopper_bf16", "bf16", "bf16"},
    {"hopper_bf16", "bf16", "fp32", Rounding::kNearestEven, false, true},
    {"hopper_tf32", "tf32", "tf32", Rounding::kStochastic},
    {"hopper_fp8", "fp8_e4m3", "fp16"},
    {"hopper_fp8", "fp8_e4m3", "fp8_e4m3", Rounding::kNearestEven, true, true},
    {"hopper_fp16", "fp16", "fp16", Rounding::kNearestEven, false, false, false},
    {"hopper_fp8", "fp8_e4m3", "bf16", Rounding::kNearestEven, true, false, true, true},
    {"hopper_fp16_acc16", "fp16", "fp16", Rounding::kNearestEven, false, true, true, true},
};

}  // namespace

TEST_CASE("cuda engine: products rounded on the device have the bits of products rounded here") {
  for (cuda::Device* device : multiplying_devices()) {
    CAPTURE(device->name());
    const auto here = [&](const GemmArgs<float>& args) {
      cuda::cuda_gemm(args, scalar_gemm<float>, *device);
    };
    const auto there = [&](const GemmArgs<float>& args, const GemmRounding& rounding) {
      REQUIRE(cuda::cuda_rounded_gemm(args, rounding, scalar_gemm<float>, *device));
    };
    for (const RoundedCase& how : kRoundedCases) {
      CAPTURE(&how - kRoundedCases);
      const int64_t before = cuda::traffic(*device).roundings;
      CHECK(rounded_difference(rounded_product(how, then_rounded(here)),
                               rounded_product(how, there)) == "");
      CHECK(cuda::traffic(*device).roundings == before + 1);
    }
  }
}

TEST_CASE("cuda engine: models' products rounded on the device have the scalar kernels' bits") {
  std::vector<RoundedCase> cases(std::begin(kRoundedCases), std::end(kRoundedCases));
  cases.push_back({"fp32_fused", "fp16", "fp16", Rounding::kNearestEven, false, true});
  cases.push_back({"bf16", "bf16", "bf16", Rounding::kStochastic, true});
  for (cuda::Device* device : multiplying_devices()) {
    CAPTURE(device->name());
    const auto there = [&](const GemmArgs<float>& args, const GemmRounding& rounding) {
      REQUIRE(cuda::model_rounded_gemm(args, rounding, *device, 0));
    };
    for (const RoundedCase& how : cases) {
      CAPTURE(&how - cases.data());
      CHECK(rounded_difference(rounded_product(how, then_rounded(scalar_gemm<float>)),
                               rounded_product(how, there)) == "");
    }
  }
}

TEST_CASE("cuda engine: fewer bytes come back where the result is rounded on the device") {
  const auto bytes_of = [](const RoundedCase& how) {
    const int64_t before = cuda::traffic(cuda::host_device()).bytes_down;
    rounded_product(how, [](const GemmArgs<float>& args, const GemmRounding& rounding) {
      REQUIRE(cuda::cuda_rounded_gemm(args, rounding, scalar_gemm<float>, cuda::host_device()));
    });
    return cuda::traffic(cuda::host_device()).bytes_down - before;
  };
  RoundedCase how{"hopper_fp16", "fp16", "fp16"};
  how.measures = false;
  CHECK(bytes_of(how) == 2 * 37 * 131);
  how.result = "fp8_e4m3";
  CHECK(bytes_of(how) == 37 * 131);
  how.with_events = true;  // they are read from the sums
  CHECK(bytes_of(how) == 5 * 37 * 131);
  how.with_events = false, how.measures = true;
  CHECK(bytes_of(how) == 37 * 131 + 2 * (sizeof(TensorStats) + 16 * sizeof(cuda::MeasuredSums)));
}

TEST_CASE("cuda engine: what a device does not form or round is left to the caller") {
  RoundedCase how{"hopper_fp8_mma", "fp8_e4m3", "fp16"};
  const auto on_host = [](bool want) {
    return [want](const GemmArgs<float>& args, const GemmRounding& rounding) {
      CHECK(cuda::cuda_rounded_gemm(args, rounding, scalar_gemm<float>, cuda::host_device()) ==
            want);
    };
  };
  rounded_product(how, on_host(false));
  how = {"hopper_fp16", "fp16", "fp64"};
  rounded_product(how, on_host(false));
  rounded_product(how, [](const GemmArgs<float>& args, const GemmRounding& rounding) {
    CHECK(!cuda::model_rounded_gemm(args, rounding, cuda::host_device(), 0));
  });
  how.result = "fp16";
  rounded_product(how, on_host(true));
  rounded_product(how, [](const GemmArgs<float>& args, const GemmRounding& rounding) {
    CHECK(!cuda::model_rounded_gemm(args, rounding, cuda::host_device(), 37 * 131 * 33 + 1));
  });
}

TEST_CASE("cuda engine: the sets round factors here and results on their device") {
  const KernelSet* sets[] = {&cuda_host_kernels<scalar_kernels>(),
                             &modelled_host_kernels<scalar_kernels>()};
  const auto roundings_there = [] { return cuda::traffic(cuda::host_device()).roundings; };
  for (const KernelSet* set : sets) {
    CAPTURE(set->name);
    for (const char* accumulator : {"hopper_fp16", "fp32_kahan"}) {
      CAPTURE(accumulator);
      TensorStats stats[2][2];  // of A, by pass
      const auto run = [&](int pass, bool in_passes) {
        return [&stats, set, pass, in_passes](const GemmArgs<float>& args,
                                              const GemmRounding& rounding) {
          const QuantizeSpec coarse{.format = &find_format("fp8_e5m2")};
          const RoundedGemmArgs<float> all{
              args, {coarse, &stats[pass][0]}, {coarse, &stats[pass][1]}, rounding};
          if (in_passes) {
            rounded_gemm_in_passes(all, set->f32.gemm, scalar_quantize<float>);
          } else {
            rounded_gemm(set->f32, all);
          }
        };
      };
      const RoundedCase how{accumulator, "fp16", "fp16"};
      const RoundedResult want = rounded_product(how, run(0, true));
      const int64_t before = roundings_there();
      CHECK(rounded_difference(want, rounded_product(how, run(1, false))) == "");
      CHECK(roundings_there() - before ==
            (set == sets[0] && accumulator == std::string("hopper_fp16") ? 1 : 0));
      CHECK(difference(stats[0][0], stats[1][0]) == "");
      CHECK(difference(stats[0][1], stats[1][1]) == "");
      CHECK(stats[0][0].inexact > 0);
    }
  }
}

}  // namespace lockstep
