// Whole devices of the engine cuda: the host and a GPU, if there is one, give exact sums; a device
// with a planted fault does not pass for one.
#include <doctest/doctest.h>

#include <array>
#include <iterator>
#include <string>
#include <string_view>

#include "tests/emulation/cuda/device_products.h"

namespace lockstep {

// Sums of small integers are exact in any order, with and without parts.
TEST_CASE("cuda engine: on every device, products of small integers are exact") {
  std::vector<cuda::Device*> devices{&cuda::host_device()};
  std::string why_not;
  if (cuda::gpu_device(&why_not) != nullptr) {
    devices.push_back(cuda::gpu_device());
  } else {
    MESSAGE("SKIPPED: 1 device: no GPU: " << why_not);
  }
  const auto whole = [](std::vector<float> values) {
    for (float& x : values) x = std::round(2 * x);  // -2 to 2
    return values;
  };
  for (cuda::Device* device : devices) {
    for (const Kind& kind : kKinds) {
      const Accumulator& row = find_accumulator(kind.accumulator);
      const Format &fa = find_format(kind.a), &fb = find_format(kind.b);
      const bool is_of_chip = row.hardware == device->hardware().name;
      if (!kind.runs_on_device || !is_of_chip) continue;
      CAPTURE(device->name());
      CAPTURE(kind.accumulator);
      for (const LibraryRules& rules :
           {LibraryRules{}, LibraryRules{.splits_k = false},
            LibraryRules{.narrow_results = true, .workspace_bytes = 0},
            LibraryRules{.narrow_results = true, .adds_parts_narrow = false}}) {
        for (const auto& [m, n, k, count] : {std::array<int64_t, 4>{1, 1, 1, 1},
                                             {33, 17, 65, 1},
                                             {64, 64, 480, 1},
                                             {5, 7, 9, 3},
                                             {16, 24, 32, 4}}) {
          for (int layout = 0; layout < 4; ++layout) {
            const bool ta = (layout & 1) != 0, tb = (layout & 2) != 0;
            const std::vector<float> a = whole(values_of(fa, count * m * k, 1, 0)),
                                     b = whole(values_of(fb, count * k * n, 2, 0));
            std::vector<float> c(static_cast<size_t>(count * m * n)), want(c);
            const auto stack = [&](std::vector<float>& out) {
              return StackedGemm<float>{.product = {.transpose_a = ta,
                                                    .transpose_b = tb,
                                                    .m = m,
                                                    .n = n,
                                                    .k = k,
                                                    .a = a.data(),
                                                    .lda = ta ? m : k,
                                                    .b = b.data(),
                                                    .ldb = tb ? k : n,
                                                    .c = out.data(),
                                                    .ldc = n,
                                                    .accumulator = &with_library_rules(row, rules),
                                                    .a_format = &fa,
                                                    .b_format = &fb},
                                        .count = count};
            };
            for (int64_t i = 0; i < count; ++i) active_kernels().f32.gemm(stack(want).one(i));
            if (rules.narrow_results && fa.name == "bf16") {  // 8 bits hold sums up to 256
              for (float& x : want) {
                x = static_cast<float>(round_to_format(x, fa, Rounding::kNearestEven));
              }
              if (rules.adds_parts_narrow && k > 256) continue;  // parts are rounded first
            }
            REQUIRE(cuda::cuda_stacked_gemm(stack(c), active_kernels().f32.gemm, *device));
            for (float& x : want) x += 0.0f;  // a library may give -0 for an empty part
            for (float& x : c) x += 0.0f;
            CHECK(same_bits(c, want));
          }
        }
      }
    }
  }
}

TEST_CASE("cuda engine: planted faults of a device change results") {
  using Fault = FaultyProducts::Fault;
  constexpr Fault kFaults[] = {Fault::kSwapsFactors, Fault::kSkipsLastSum, Fault::kDropsLastRow,
                               Fault::kWrongStride, Fault::kNarrowsSums};
  static FaultyProducts devices[] = {FaultyProducts(kFaults[0]), FaultyProducts(kFaults[1]),
                                     FaultyProducts(kFaults[2]), FaultyProducts(kFaults[3]),
                                     FaultyProducts(kFaults[4])};
  for (size_t i = 0; i < std::size(kFaults); ++i) {
    const Fault fault = kFaults[i];
    FaultyProducts& device = devices[i];
    CAPTURE(i);
    for (const Kind& kind : kKinds) {
      if (!kind.runs_on_device) continue;
      CAPTURE(kind.accumulator);
      const Layout s{16, 16, 48, false, false, false, 0};
      // Sums of 13 fraction bits end in zeros: the lowest bit is never set.
      const bool has_short_sums = std::string_view(kind.accumulator).starts_with("hopper_fp8");
      if (fault == Fault::kNarrowsSums && has_short_sums) continue;
      CHECK_FALSE(same_bits(on(device, kind, s, 0), in_software(kind, s, 0)));
    }
  }
}

TEST_CASE("cuda engine: without a GPU there is no device, and a reason") {
  std::string why_not;
  if (cuda::gpu_device(&why_not) != nullptr) {
    CHECK(why_not.empty());
    return;
  }
  CHECK_FALSE(why_not.empty());
}

}  // namespace lockstep
