// What stays on a device of the engine cuda between products: buffers, and factors that do not
// change. Every product is compared with the software kernels' bit for bit.
#include <doctest/doctest.h>

#include "emulation/kernels/cuda/factor_store.h"
#include "tests/emulation/cuda/device_products.h"

namespace lockstep {

TEST_CASE("cuda engine: buffers are kept, and copies are counted") {
  static FaultyProducts device(FaultyProducts::Fault::kNone);  // of its own: counts begin at 0
  const Layout s{32, 16, 64, false, true, false, 0};
  on(device, kKinds[0], s, 0);
  const cuda::Traffic first = cuda::traffic(device);
  CHECK(first.products == 1);
  CHECK(first.allocations == 3);
  CHECK(first.bytes_up == 2 * (32 * 64 + 16 * 64));
  CHECK(first.bytes_down == 4 * 32 * 16);
  REQUIRE(first.algorithms.size() == 1);
  CHECK(first.algorithms.begin()->first == "hopper_fp16 fp16 x fp16 32x16x64");
  CHECK(first.algorithms.begin()->second.text == "model hopper_fp16");
  CHECK(cuda::traffic_text().find("faulty: 1 product of 1 size in ") != std::string::npos);
  // FP8 matrices are filled up to multiples of 16.
  on(device, kKinds[5], {17, 5, 20, false, true, false, 0}, 0);
  CHECK(cuda::traffic(device).bytes_up == first.bytes_up + (32 + 16) * 32);
  CHECK(cuda::traffic(device).algorithms.size() == 2);
}

TEST_CASE("cuda engine: factors stay on the device until they change") {
  static FaultyProducts device(FaultyProducts::Fault::kNone);
  constexpr int64_t kM = 8, kN = 16, kK = 32, kBoth = 2 * (kM + kN) * kK;  // bytes
  const Format& format = find_format("bf16");
  std::vector<float> a = values_of(format, kM * kK, 1, 0), b = values_of(format, kN * kK, 2, 0);
  std::vector<float> c(kM * kN), want(c);
  GemmArgs<float> args{.transpose_b = true,
                       .m = kM,
                       .n = kN,
                       .k = kK,
                       .a = a.data(),
                       .lda = kK,
                       .b = b.data(),
                       .ldb = kK,
                       .c = c.data(),
                       .ldc = kN,
                       .accumulator = &find_accumulator("hopper_bf16"),
                       .a_format = &format,
                       .b_format = &format};
  const auto copied = [&] {
    cuda::cuda_gemm(args, active_kernels().f32.gemm, device);
    GemmArgs<float> again = args;
    again.c = want.data();
    active_kernels().f32.gemm(again);
    CHECK(same_bits(c, want));
    const DeviceWork work = cuda::take_work(device);
    CHECK(work.bytes_up + work.bytes_kept == kBoth);
    return work.bytes_up;
  };
  CHECK(copied() == kBoth);
  CHECK(copied() == kBoth);  // read twice without a change: kept from now on
  CHECK(copied() == 0);
  const int64_t allocations = cuda::traffic(device).allocations;
  b[3] = 2;
  CHECK(copied() == 2 * kN * kK);
  CHECK(copied() == 0);
  CHECK(cuda::traffic(device).allocations == allocations);
  // The same memory, read in another order or in the other place of a product, is another array.
  std::swap(args.a, args.b);
  std::swap(args.m, args.n);
  args.ldc = kM;
  CHECK(copied() == kBoth);
  args.transpose_b = false, args.ldb = kM;
  CHECK(copied() == kBoth);
  CHECK(copied() == 2 * kM * kK);
  CHECK(copied() == 0);
}

TEST_CASE("cuda engine: factors of one product that lie in one array") {
  const Kind& kind = kKinds[0];
  for (const auto& [a, b] : {std::pair<std::vector<int64_t>, std::vector<int64_t>>{{0, 0}, {1, 1}},
                             {{0, 1}, {1, 0}},
                             {{1, 1}, {0, 1}}}) {
    const Format& format = find_format(kind.a);
    const std::vector<float> x = values_of(format, 2 * 16 * 16, 1, 0);
    std::vector<float> c(2 * 16 * 16), want(c);
    const auto stack = [&](std::vector<float>& out) {
      return StackedGemm<float>{.product = {.transpose_b = true,
                                            .m = 16,
                                            .n = 16,
                                            .k = 16,
                                            .a = x.data(),
                                            .lda = 16,
                                            .b = x.data(),
                                            .ldb = 16,
                                            .c = out.data(),
                                            .ldc = 16,
                                            .accumulator = &find_accumulator(kind.accumulator),
                                            .a_format = &format,
                                            .b_format = &format},
                                .count = 2,
                                .a_matrices = a,
                                .b_matrices = b};
    };
    for (int64_t i = 0; i < 2; ++i) active_kernels().f32.gemm(stack(want).one(i));
    for (int time = 0; time < 3; ++time) {
      std::ranges::fill(c, -1.0f);
      REQUIRE(cuda::cuda_stacked_gemm(stack(c), active_kernels().f32.gemm, cuda::host_device()));
      CHECK(same_bits(c, want));
    }
  }
}

TEST_CASE("cuda engine: the store of factors keeps what does not change, up to a limit") {
  static FaultyProducts device(FaultyProducts::Fault::kNone);
  cuda::FactorStore store(device, 64, 5);
  const float place[8] = {};
  const auto was_there = [&](int at, uint8_t value, size_t bytes, int operand = 0) {
    const std::vector<std::byte> codes(bytes, std::byte{value});
    const auto stored = store.put({operand, &place[at], 1, 1, 1, 1, 1, cuda::Type::kFp16}, codes);
    CHECK(std::memcmp(stored.memory, codes.data(), bytes) == 0);
    return stored.was_there;
  };
  const auto keep = [&](int at, uint8_t value, size_t bytes) {
    CHECK_FALSE(was_there(at, value, bytes));
    CHECK_FALSE(was_there(at, value, bytes));
    return was_there(at, value, bytes);
  };
  CHECK(keep(0, 1, 30));
  CHECK_FALSE(was_there(1, 2, 30));
  CHECK_FALSE(was_there(1, 3, 30));  // changes: never kept
  CHECK(store.kept_bytes() == 30);
  CHECK_FALSE(was_there(0, 9, 30));  // an array that is kept stays so when it changes
  CHECK(was_there(0, 9, 30));
  CHECK_FALSE(was_there(0, 9, 30, 1));
  CHECK(keep(2, 4, 30));
  CHECK(store.kept_bytes() == 60);
  CHECK(was_there(0, 9, 30));
  CHECK_FALSE(keep(3, 5, 30));  // full, and all of it was read lately
  CHECK(was_there(0, 9, 30));
  CHECK(store.kept_bytes() == 60);
  CHECK_FALSE(was_there(3, 5, 30));  // 2 was not read for long: it has left
  CHECK(was_there(3, 5, 30));
  CHECK(was_there(0, 9, 30));
  CHECK_FALSE(was_there(2, 4, 30));
  CHECK_FALSE(keep(5, 7, 100));  // larger than the limit
}

}  // namespace lockstep
