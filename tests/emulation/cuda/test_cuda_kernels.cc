// The engine `cuda` on the host that models a GPU: packing, layouts, buffers and fallbacks,
// without tensor cores. Products must equal the software kernels under the same accumulator bit for
// bit; devices with a planted fault must not.
#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <string_view>
#include <utility>
#include <vector>

#include "emulation/accumulator/accumulator_event.h"
#include "emulation/kernels/active_kernels.h"
#include "emulation/kernels/cuda/codes.h"
#include "emulation/kernels/cuda/gemm.h"
#include "emulation/kernels/simd/convolution/conv2d.h"
#include "tests/emulation/cuda/device_products.h"

namespace lockstep {
namespace {

using cuda::Type;

constexpr Type kTypes[] = {Type::kFp16, Type::kBf16, Type::kTf32, Type::kE4m3, Type::kE5m2};

// Every size class, transpose and start.
std::vector<Layout> shapes() {
  std::vector<Layout> all;
  const int64_t sizes[][3] = {{1, 1, 1}, {2, 3, 5}, {16, 16, 16}, {33, 17, 65}, {7, 40, 129}};
  // FP8 is filled up to multiples of 16: rows of 20 whose stride is 32.
  all.push_back({16, 16, 20, false, true, false, 12});
  for (const auto& [m, n, k] : sizes) {
    for (int bits = 0; bits < 16; ++bits) {
      all.push_back(
          {m, n, k, (bits & 1) != 0, (bits & 2) != 0, (bits & 4) != 0, (bits & 8) / 8 * 3});
    }
  }
  return all;
}

struct Batch {
  int64_t m, n, k, count;
  bool transpose_a, transpose_b;
  std::vector<int64_t> a_matrices, b_matrices;  // as in StackedGemm
};

// A stack of products, and its events, by `stacked_gemm`.
template <typename Gemm>
std::pair<std::vector<float>, std::vector<uint8_t>> stack_of(const Kind& kind, const Batch& s,
                                                             uint32_t rare, Gemm stacked_gemm) {
  const Format &fa = find_format(kind.a), &fb = find_format(kind.b);
  const std::vector<float> a = values_of(fa, s.count * s.m * s.k, 1, rare);
  const std::vector<float> b = values_of(fb, s.count * s.k * s.n, 2, rare);
  std::vector<float> c(static_cast<size_t>(s.count * s.m * s.n), -1);
  std::vector<uint8_t> events(c.size());
  StackedGemm<float> stack{.product = {.transpose_a = s.transpose_a,
                                       .transpose_b = s.transpose_b,
                                       .m = s.m,
                                       .n = s.n,
                                       .k = s.k,
                                       .a = a.data(),
                                       .lda = s.transpose_a ? s.m : s.k,
                                       .b = b.data(),
                                       .ldb = s.transpose_b ? s.k : s.n,
                                       .c = c.data(),
                                       .ldc = s.n,
                                       .accumulator = &find_accumulator(kind.accumulator),
                                       .a_format = &fa,
                                       .b_format = &fb,
                                       .events = events.data()},
                           .count = s.count,
                           .a_matrices = s.a_matrices,
                           .b_matrices = s.b_matrices};
  stacked_gemm(stack);
  return {c, events};
}

}  // namespace

TEST_CASE("cuda engine: every code of a type is packed and unpacked") {
  for (const Type type : kTypes) {
    const Format& format = cuda::format_of(type);
    CAPTURE(format.name);
    if (type == Type::kTf32) continue;  // FP32 words are copied
    const int64_t count = int64_t{1} << format.storage_bits();
    const int64_t width = cuda::bytes_of(type);
    std::vector<uint8_t> codes(static_cast<size_t>(count * width)), packed(codes.size());
    for (int64_t code = 0; code < count; ++code) {
      for (int64_t byte = 0; byte < width; ++byte) {
        codes[static_cast<size_t>(code * width + byte)] = static_cast<uint8_t>(code >> (8 * byte));
      }
    }
    std::vector<float> values(static_cast<size_t>(count));
    cuda::unpack_values(codes.data(), type, values.data(), count);
    cuda::pack_codes(values.data(), type, packed.data(), count);
    int64_t nans = 0;
    for (int64_t code = 0; code < count; ++code) {
      const float want = static_cast<float>(decode(static_cast<uint64_t>(code), format));
      const float x = values[static_cast<size_t>(code)];
      if (std::isnan(want)) {
        ++nans;
        CHECK(std::isnan(x));
        continue;
      }
      REQUIRE(std::bit_cast<uint32_t>(x) == std::bit_cast<uint32_t>(want));
      REQUIRE(std::memcmp(&packed[static_cast<size_t>(code * width)],
                          &codes[static_cast<size_t>(code * width)],
                          static_cast<size_t>(width)) == 0);
    }
    CHECK(nans > 0);
    // The chips' NaN: all bits but the sign.
    const float nan = std::numeric_limits<float>::quiet_NaN();
    uint16_t word = 0;
    cuda::pack_codes(&nan, type, &word, 1);
    CHECK(word == (1u << (format.storage_bits() - 1)) - 1);
  }
}

TEST_CASE("cuda engine: products on the host device have the bits of the software kernels") {
  int64_t on_device = 0;
  for (const Kind& kind : kKinds) {
    CAPTURE(kind.accumulator);
    CAPTURE(kind.a);
    for (const Layout& s : shapes()) {
      CAPTURE(s.m);
      CAPTURE(s.n);
      CAPTURE(s.k);
      CAPTURE(s.transpose_a);
      CAPTURE(s.transpose_b);
      CAPTURE(s.from_c);
      CAPTURE(s.spare);
      for (const uint32_t rare : {0u, 20u}) {
        const int64_t before = cuda::traffic(cuda::host_device()).products;
        REQUIRE(same_bits(on(cuda::host_device(), kind, s, rare), in_software(kind, s, rare)));
        const int64_t products = cuda::traffic(cuda::host_device()).products - before;
        REQUIRE(products == (kind.runs_on_device && !s.from_c ? 1 : 0));
        on_device += products;
      }
    }
  }
  CHECK(on_device == 7 * 41 * 2);
}

TEST_CASE(
    "cuda engine: results leave the library in the factors' format where the policy says so") {
  const Layout s{33, 17, 65, false, true, false, 0};
  for (const Kind& kind : kKinds) {
    CAPTURE(kind.accumulator);
    CAPTURE(kind.a);
    const bool rounds = std::string_view(kind.accumulator) == "hopper_fp16" ||
                        std::string_view(kind.accumulator) == "hopper_bf16";
    for (const uint32_t rare : {0u, 20u}) {
      cuda::Traffic before = cuda::traffic(cuda::host_device());
      const std::vector<float> narrow = product(kind, s, rare, [&](GemmArgs<float> args) {
        args.accumulator = &with_library_rules(*args.accumulator, {.narrow_results = true});
        cuda::cuda_gemm(args, active_kernels().f32.gemm, cuda::host_device());
      });
      std::vector<float> want = in_software(kind, s, rare);
      const int64_t bytes = cuda::traffic(cuda::host_device()).bytes_down - before.bytes_down;
      if (rounds) {
        CHECK(bytes == s.m * s.n * 2);
        CHECK_FALSE(same_bits(narrow, want));
        for (float& x : want) {
          if (std::isnan(x)) continue;
          x = static_cast<float>(round_to_format(x, find_format(kind.a), Rounding::kNearestEven));
        }
      }
      CHECK(same_bits(narrow, want));
    }
  }
}

TEST_CASE("cuda engine: library rules are a part of an accumulator") {
  const Accumulator& row = find_accumulator("hopper_fp16");
  const LibraryRules rules{.splits_k = false, .workspace_bytes = 0};
  const Accumulator& own = with_library_rules(row, rules);
  CHECK(&own != &row);
  CHECK(own.library == rules);
  CHECK(own.name == row.name);
  CHECK(&with_library_rules(row, rules) == &own);
  CHECK(&with_library_rules(row, {}) == &row);
  CHECK(with_library_rules(own, {}).library == LibraryRules{});
  CHECK(&with_library_rules(find_accumulator("hopper_bf16"), rules) != &own);
}

TEST_CASE("cuda engine: a stack of products is one call, with the bits of the software kernels") {
  const Kernels<float>&device = cuda_host_engine_kernels().f32, &software = active_kernels().f32;
  const int64_t sizes[][3] = {{1, 1, 1}, {2, 3, 5}, {16, 16, 16}, {33, 17, 65}, {7, 40, 129}};
  for (const Kind& kind : kKinds) {
    CAPTURE(kind.accumulator);
    for (const auto& [m, n, k] : sizes) {
      for (int bits = 0; bits < 4; ++bits) {
        const bool ta = (bits & 1) != 0, tb = (bits & 2) != 0;
        for (const Batch& s : {Batch{m, n, k, 1, ta, tb, {}, {}}, Batch{m, n, k, 3, ta, tb, {}, {}},
                               Batch{m, n, k, 3, ta, tb, {1, 1, 1}, {}},
                               Batch{m, n, k, 4, ta, tb, {3, 0, 2, 1}, {2, 2, 0, 0}},
                               Batch{m, n, k, 2, ta, tb, {}, {1, 1}}}) {
          CAPTURE(m);
          CAPTURE(bits);
          CAPTURE(s.count);
          for (const uint32_t rare : {0u, 20u}) {
            const int64_t before = cuda::traffic(cuda::host_device()).products;
            const auto ours = stack_of(kind, s, rare, [&](const StackedGemm<float>& stack) {
              device.stacked_gemm(device, stack);
            });
            const int64_t calls = cuda::traffic(cuda::host_device()).products - before;
            const auto theirs = stack_of(kind, s, rare, [&](const StackedGemm<float>& stack) {
              software.stacked_gemm(software, stack);
            });
            REQUIRE(same_bits(ours.first, theirs.first));
            REQUIRE(calls == (kind.runs_on_device ? 1 : 0));
            for (size_t i = 0; kind.runs_on_device && i < ours.first.size(); ++i) {
              REQUIRE(((ours.second[i] & kStepNan) != 0) == std::isnan(ours.first[i]));
            }
          }
        }
      }
    }
  }
}

TEST_CASE("cuda engine: a stack that is too large for one call is cut") {
  using Fault = FaultyProducts::Fault;
  static FaultyProducts device(Fault::kNone);
  const std::vector<int64_t> reordered = {2, 0, 0, 4, 1}, none;
  for (const auto& [a, b] : {std::pair(none, none), {reordered, none}, {none, reordered}}) {
    const Batch s{5, 4, 9, 5, false, true, a, b};
    const Kernels<float>& software = active_kernels().f32;
    const auto want = stack_of(kKinds[0], s, 0, [&](const StackedGemm<float>& stack) {
      software.stacked_gemm(software, stack);
    });
    const int64_t elements = s.m * s.k + s.k * s.n + s.m * s.n;
    for (const int64_t at_once : {1, 2, 4}) {
      const auto got = stack_of(kKinds[0], s, 0, [&](const StackedGemm<float>& stack) {
        const int64_t before = cuda::traffic(device).products;
        CHECK(cuda::cuda_stacked_gemm(stack, software.gemm, device, at_once * elements));
        CHECK(cuda::traffic(device).products - before == (5 + at_once - 1) / at_once);
      });
      CHECK(same_bits(got.first, want.first));
    }
  }
}

TEST_CASE("cuda engine: planted faults of a batch change results") {
  using Fault = FaultyProducts::Fault;
  static FaultyProducts right(Fault::kNone), step(Fault::kWrongBatchStep),
      order(Fault::kSwapsBatch);
  const Batch s{5, 4, 9, 3, false, true, {}, {}};
  for (const Kind& kind : kKinds) {
    if (!kind.runs_on_device) continue;
    CAPTURE(kind.accumulator);
    const Kernels<float>& software = active_kernels().f32;
    const auto on_device = [&](cuda::Device& device) {
      return stack_of(kind, s, 0, [&](const StackedGemm<float>& stack) {
        CHECK(cuda::cuda_stacked_gemm(stack, software.gemm, device));
      });
    };
    const auto want = stack_of(kind, s, 0, [&](const StackedGemm<float>& stack) {
      software.stacked_gemm(software, stack);
    });
    CHECK(same_bits(on_device(right).first, want.first));
    CHECK_FALSE(same_bits(on_device(step).first, want.first));
    CHECK_FALSE(same_bits(on_device(order).first, want.first));
  }
}

TEST_CASE("cuda engine: convolutions and their gradients have the bits of the software kernels") {
  struct Case {
    int64_t batch, channels, size, out, kernel, stride, pad, dilation;
  };
  const Kernels<float>&device = cuda_host_engine_kernels().f32, &software = active_kernels().f32;
  for (const Case& x : {Case{1, 1, 5, 1, 1, 1, 0, 1},
                        {3, 2, 7, 5, 3, 1, 1, 1},
                        {2, 3, 9, 4, 3, 2, 1, 1},
                        {2, 2, 11, 3, 3, 1, 2, 2},
                        {5, 4, 6, 17, 2, 2, 0, 1}}) {
    CAPTURE(x.channels);
    const Kind& kind = kKinds[2];
    ConvShape s{};
    s.batch = x.batch, s.in_channels = x.channels, s.in_height = s.in_width = x.size;
    s.out_channels = x.out, s.kernel_height = s.kernel_width = x.kernel;
    s.stride_h = s.stride_w = x.stride, s.pad_h = s.pad_w = x.pad;
    s.dilation_h = s.dilation_w = x.dilation;
    s.out_height = s.out_width =
        (x.size + 2 * x.pad - x.dilation * (x.kernel - 1) - 1) / x.stride + 1;
    const Format& format = find_format(kind.a);
    const int64_t x_size = x.batch * x.channels * x.size * x.size;
    const int64_t w_size = x.out * x.channels * x.kernel * x.kernel;
    const int64_t y_size = x.batch * x.out * s.out_height * s.out_width;
    const std::vector<float> image = values_of(format, x_size, 4, 0),
                             w = values_of(format, w_size, 5, 0),
                             dy = values_of(format, y_size, 6, 0);
    const auto run = [&](void (*pass)(const ConvArgs<float>&), int64_t size) {
      std::vector<float> out(static_cast<size_t>(size), -1);
      ConvArgs<float> args{.shape = s};
      args.x = image.data(), args.w = w.data(), args.dy = dy.data(), args.out = out.data();
      args.x_format = args.w_format = args.dy_format = &format;
      args.accumulator = &find_accumulator(kind.accumulator);
      pass(args);
      return out;
    };
    const int64_t before = cuda::traffic(cuda::host_device()).products;
    CHECK(same_bits(run(device.conv2d_forward, y_size), run(software.conv2d_forward, y_size)));
    CHECK(same_bits(run(device.conv2d_backward_input, x_size),
                    run(software.conv2d_backward_input, x_size)));
    CHECK(same_bits(run(device.conv2d_backward_weight, w_size),
                    run(software.conv2d_backward_weight, w_size)));
    CHECK(cuda::traffic(cuda::host_device()).products >= before + 3);
  }
}

TEST_CASE("cuda engine: a weight gradient in pieces of columns, with events") {
  ConvShape s{};
  s.batch = 3, s.in_channels = 2, s.in_height = 6, s.in_width = 5;
  s.out_channels = 4, s.kernel_height = 3, s.kernel_width = 2;
  s.out_height = 4, s.out_width = 4;
  const Kind& kind = kKinds[1];  // sums in FP16 have events
  const Format& format = find_format(kind.a);
  constexpr uint32_t kRare = 4;
  const std::vector<float> x = values_of(format, 3 * 2 * 6 * 5, 7, kRare),
                           dy = values_of(format, 3 * 4 * 4 * 4, 8, kRare);
  const int64_t columns = 2 * 3 * 2, pixels = 3 * 4 * 4;
  const auto run = [&](auto pass) {
    std::vector<float> out(static_cast<size_t>(4 * columns), -1);
    std::vector<uint8_t> events(out.size());
    ConvArgs<float> args{.shape = s};
    args.x = x.data(), args.dy = dy.data(), args.out = out.data(), args.events = events.data();
    args.x_format = args.dy_format = &format;
    args.accumulator = &find_accumulator(kind.accumulator);
    pass(args);
    return std::pair(out, events);
  };
  const auto whole = run(active_kernels().f32.conv2d_backward_weight);
  for (const int64_t at_once : {int64_t{1}, int64_t{5}, columns}) {
    CAPTURE(at_once);
    const auto pieces = run([&](const ConvArgs<float>& args) {
      conv2d_backward_weight_at_once(active_kernels().f32.gemm, args, at_once * pixels);
    });
    CHECK(same_bits(pieces.first, whole.first));
    CHECK(pieces.second == whole.second);
  }
  CHECK(std::ranges::any_of(whole.second, [](uint8_t event) { return event != 0; }));
}

TEST_CASE("cuda engine: a sum of no products never reaches the device") {
  const Kind& kind = kKinds[0];
  const Layout none{3, 4, 0, false, false, false, 0};
  const int64_t before = cuda::traffic(cuda::host_device()).products;
  CHECK(same_bits(on(cuda::host_device(), kind, none, 0), in_software(kind, none, 0)));
  CHECK(cuda::traffic(cuda::host_device()).products == before);
}

TEST_CASE("cuda engine: events are NaN, and infinities of finite factors") {
  std::vector<uint8_t> events;
  const Kind& kind = kKinds[1];  // sums in FP16 overflow
  const Layout s{12, 8, 16, false, true, false, 0};
  constexpr uint32_t kRare = 4;
  const std::vector<float> c = on(cuda::host_device(), kind, s, kRare, &events);
  const std::vector<float> a = values_of(find_format(kind.a), s.m * s.k, 1, kRare);
  const std::vector<float> b = values_of(find_format(kind.b), s.n * s.k, 2, kRare);
  int overflows = 0, nans = 0;
  for (int64_t i = 0; i < s.m; ++i) {
    for (int64_t j = 0; j < s.n; ++j) {
      bool is_finite = true;
      for (int64_t k = 0; k < s.k; ++k) {
        is_finite = is_finite && std::isfinite(a[static_cast<size_t>(i * s.k + k)]) &&
                    std::isfinite(b[static_cast<size_t>(j * s.k + k)]);
      }
      const auto at = static_cast<size_t>(i * s.n + j);
      const bool overflows_here = std::isinf(c[at]) && is_finite;
      const uint8_t want = std::isnan(c[at]) ? kStepNan : overflows_here ? kStepToInfinity : 0;
      CHECK(events[at] == want);
      overflows += overflows_here ? 1 : 0;
      nans += std::isnan(c[at]) ? 1 : 0;
    }
  }
  CHECK(overflows > 0);
  CHECK(nans > 0);

  // An infinite factor makes an infinite sum, but the sum did not overflow.
  std::vector<float> ones(16, 1), row = ones, sum(1);
  row[3] = std::numeric_limits<float>::infinity();
  uint8_t event = 0;
  cuda::cuda_gemm({.transpose_b = true,
                   .m = 1,
                   .n = 1,
                   .k = 16,
                   .a = row.data(),
                   .lda = 16,
                   .b = ones.data(),
                   .ldb = 16,
                   .c = sum.data(),
                   .ldc = 1,
                   .accumulator = &find_accumulator(kind.accumulator),
                   .events = &event},
                  active_kernels().f32.gemm, cuda::host_device());
  CHECK(std::isinf(sum[0]));
  CHECK(event == 0);
}

}  // namespace lockstep
