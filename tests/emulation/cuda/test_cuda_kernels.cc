// The engine `cuda` on the host that stands in for a GPU: packing, layouts, buffers and fallbacks,
// without tensor cores. Products must equal the software kernels under the same accumulator bit for
// bit; devices with a planted fault must not.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "emulation/accumulator/accumulator_event.h"
#include "emulation/kernels/active_kernels.h"
#include "emulation/kernels/cuda/codes.h"
#include "emulation/kernels/cuda/factor_store.h"
#include "emulation/kernels/cuda/gemm.h"
#include "emulation/kernels/simd/conv2d.h"
#include "src/core/random.h"

namespace lockstep {
namespace {

using cuda::Type;

constexpr Type kTypes[] = {Type::kFp16, Type::kBf16, Type::kTf32, Type::kE4m3, Type::kE5m2};

struct Kind {
  const char *accumulator, *a, *b;
  bool runs_on_device;
};
constexpr Kind kKinds[] = {
    {"hopper_fp16", "fp16", "fp16", true},
    {"hopper_fp16_acc16", "fp16", "fp16", true},
    {"hopper_bf16", "bf16", "bf16", true},
    {"hopper_tf32", "tf32", "tf32", true},
    {"ampere_tf32", "tf32", "tf32", true},
    {"hopper_fp8", "fp8_e4m3", "fp8_e5m2", true},
    {"hopper_fp8_promoted", "fp8_e4m3", "fp8_e4m3", true},
    // cuBLAS has no such products, or forms them otherwise.
    {"hopper_fp8", "fp8_e5m2", "fp8_e5m2", false},
    {"hopper_fp8_acc16", "fp8_e4m3", "fp8_e4m3", false},
    {"hopper_fp8_mma", "fp8_e4m3", "fp8_e4m3", false},
    {"hopper_tf32_wmma", "tf32", "tf32", false},
    {"hopper_bf16+negative_zero", "bf16", "bf16", false},
    {"fp32_fused", "fp16", "fp16", false},
    {"fp16", "fp16", "fp16", false},
};

// Values of the format, special values among them once in `rare` (0: none).
std::vector<float> values_of(const Format& format, int64_t count, uint32_t stream, uint32_t rare) {
  const RandomStream random(31, RandomPurpose::kTest, stream);
  const bool is_tf32 = format.name == "tf32";
  const auto codes = is_tf32 ? 0u : ~0u >> (32 - format.storage_bits());
  std::vector<float> values(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    const auto n = static_cast<uint64_t>(i);
    const uint32_t bits = random.bits(2 * n);
    float x = static_cast<float>(round_to_format(std::ldexp(static_cast<int32_t>(bits), -31),
                                                 format, Rounding::kNearestEven));
    if (rare != 0 && random.bits(2 * n + 1) % rare == 0) {
      x = is_tf32 ? std::bit_cast<float>(bits & 0xffffe000)
                  : static_cast<float>(decode(bits & codes, format));
    }
    values[static_cast<size_t>(i)] = x;
  }
  return values;
}

struct Shape {
  int64_t m, n, k;
  bool transpose_a, transpose_b, from_c;
  int64_t spare;  // by which rows are longer than they must be
};

// One product by `gemm`; C is a rows of n + spare, of which the rest must stay.
template <typename Gemm>
std::vector<float> product(const Kind& kind, const Shape& s, uint32_t rare, Gemm gemm,
                           std::vector<uint8_t>* events = nullptr) {
  const Format &fa = find_format(kind.a), &fb = find_format(kind.b);
  const Accumulator& accumulator = find_accumulator(kind.accumulator);
  const int64_t lda = (s.transpose_a ? s.m : s.k) + s.spare;
  const int64_t ldb = (s.transpose_b ? s.k : s.n) + s.spare, ldc = s.n + s.spare;
  const std::vector<float> a = values_of(fa, (s.transpose_a ? s.k : s.m) * lda, 1, rare);
  const std::vector<float> b = values_of(fb, (s.transpose_b ? s.n : s.k) * ldb, 2, rare);
  std::vector<float> c = values_of(*accumulator.format, s.m * ldc, 3, rare);
  if (events != nullptr) events->assign(static_cast<size_t>(s.m * s.n), 0);
  gemm(GemmArgs<float>{.transpose_a = s.transpose_a,
                       .transpose_b = s.transpose_b,
                       .m = s.m,
                       .n = s.n,
                       .k = s.k,
                       .a = a.data(),
                       .lda = lda,
                       .b = b.data(),
                       .ldb = ldb,
                       .c = c.data(),
                       .ldc = ldc,
                       .start_from_c = s.from_c,
                       .accumulator = &accumulator,
                       .a_format = &fa,
                       .b_format = &fb,
                       .events = events != nullptr ? events->data() : nullptr});
  return c;
}

std::vector<float> in_software(const Kind& kind, const Shape& s, uint32_t rare) {
  return product(kind, s, rare, active_kernels().f32.gemm);
}
std::vector<float> on(cuda::Device& device, const Kind& kind, const Shape& s, uint32_t rare,
                      std::vector<uint8_t>* events = nullptr) {
  return product(
      kind, s, rare,
      [&](const GemmArgs<float>& args) {
        cuda::cuda_gemm(args, active_kernels().f32.gemm, device);
      },
      events);
}

bool same_bits(const std::vector<float>& x, const std::vector<float>& y) {
  return x.size() == y.size() && std::memcmp(x.data(), y.data(), x.size() * sizeof(float)) == 0;
}

// Every size class, transpose and start.
std::vector<Shape> shapes() {
  std::vector<Shape> all;
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

// The host device with one fault.
class FaultyDevice : public cuda::Device {
 public:
  enum class Fault {
    kNone,
    kSwapsFactors,
    kSkipsLastSum,
    kDropsLastRow,
    kWrongStride,
    kNarrowsSums,
    kWrongBatchStep,
    kSwapsBatch
  };
  explicit FaultyDevice(Fault fault) : fault_(fault) {}

  std::string name() const override { return "faulty"; }
  const Hardware& hardware() const override { return host_.hardware(); }
  void* allocate(size_t bytes) override {
    return std::memset(host_.allocate(bytes), 0x5a, bytes);  // what was there is no result
  }
  void release(void* memory) override { host_.release(memory); }
  void upload(void* to, const void* from, size_t bytes) override { host_.upload(to, from, bytes); }
  void download(void* to, const void* from, size_t bytes) override {
    host_.download(to, from, bytes);
  }
  cuda::Algorithm multiply(const cuda::Product& product) override {
    cuda::Product p = product;
    const int64_t width = p.c_width();
    if (fault_ == Fault::kSwapsFactors) std::swap(p.a_data, p.b_data);
    if (fault_ == Fault::kWrongStride) p.k -= 16;
    if (fault_ == Fault::kDropsLastRow) --p.m;
    if (fault_ == Fault::kWrongBatchStep) p.b_step = 0;
    if (fault_ == Fault::kSwapsBatch) return in_wrong_order(p);
    cuda::Algorithm algorithm = p.m > 0 ? host_.multiply(p) : cuda::Algorithm{};
    auto* c = static_cast<uint8_t*>(p.c_data);
    if (fault_ == Fault::kSkipsLastSum) std::memset(c + (p.m * p.n - 1) * width, 0x11, width);
    for (int64_t i = 0; fault_ == Fault::kNarrowsSums && i < p.m * p.n; ++i) c[i * width] &= 0xfe;
    return algorithm;
  }
  void launch(const cuda::Kernel& kernel) override { host_.launch(kernel); }

 private:
  // The last matrix of A first.
  cuda::Algorithm in_wrong_order(cuda::Product p) {
    const int64_t a_bytes = p.a_step * cuda::bytes_of(p.a);
    p.a_data = static_cast<const uint8_t*>(p.a_data) + (p.batch - 1) * a_bytes;
    cuda::Product one = p;
    one.batch = 1;
    cuda::Algorithm algorithm;
    for (int64_t i = 0; i < p.batch; ++i) {
      algorithm = host_.multiply(one);
      one.a_data = static_cast<const uint8_t*>(one.a_data) - a_bytes;
      one.b_data = static_cast<const uint8_t*>(one.b_data) + p.b_step * cuda::bytes_of(p.b);
      one.c_data = static_cast<uint8_t*>(one.c_data) + p.m * p.n * p.c_width();
    }
    return algorithm;
  }

  cuda::Device& host_ = cuda::host_device();
  Fault fault_;
};

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
    for (const Shape& s : shapes()) {
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
  const Shape s{33, 17, 65, false, true, false, 0};
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
  using Fault = FaultyDevice::Fault;
  static FaultyDevice device(Fault::kNone);
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
  using Fault = FaultyDevice::Fault;
  static FaultyDevice right(Fault::kNone), step(Fault::kWrongBatchStep), order(Fault::kSwapsBatch);
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
  const Shape none{3, 4, 0, false, false, false, 0};
  const int64_t before = cuda::traffic(cuda::host_device()).products;
  CHECK(same_bits(on(cuda::host_device(), kind, none, 0), in_software(kind, none, 0)));
  CHECK(cuda::traffic(cuda::host_device()).products == before);
}

TEST_CASE("cuda engine: buffers are kept, and copies are counted") {
  static FaultyDevice device(FaultyDevice::Fault::kNone);  // of its own: counts begin at 0
  const Shape s{32, 16, 64, false, true, false, 0};
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
  static FaultyDevice device(FaultyDevice::Fault::kNone);
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
  static FaultyDevice device(FaultyDevice::Fault::kNone);
  cuda::FactorStore store(device, 64, 5);
  const float place[8] = {};
  const auto was_there = [&](int at, uint8_t value, size_t bytes, int operand = 0) {
    const std::vector<std::byte> codes(bytes, std::byte{value});
    const auto stored = store.put({operand, &place[at], 1, 1, 1, 1, 1, Type::kFp16}, codes);
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
  using Fault = FaultyDevice::Fault;
  constexpr Fault kFaults[] = {Fault::kSwapsFactors, Fault::kSkipsLastSum, Fault::kDropsLastRow,
                               Fault::kWrongStride, Fault::kNarrowsSums};
  static FaultyDevice devices[] = {FaultyDevice(kFaults[0]), FaultyDevice(kFaults[1]),
                                   FaultyDevice(kFaults[2]), FaultyDevice(kFaults[3]),
                                   FaultyDevice(kFaults[4])};
  for (size_t i = 0; i < std::size(kFaults); ++i) {
    const Fault fault = kFaults[i];
    FaultyDevice& device = devices[i];
    CAPTURE(i);
    for (const Kind& kind : kKinds) {
      if (!kind.runs_on_device) continue;
      CAPTURE(kind.accumulator);
      const Shape s{16, 16, 48, false, false, false, 0};
      // Sums of 13 fraction bits end in zeros: the lowest bit is never set.
      const bool has_short_sums = std::string_view(kind.accumulator).starts_with("hopper_fp8");
      if (fault == Fault::kNarrowsSums && has_short_sums) continue;
      CHECK_FALSE(same_bits(on(device, kind, s, 0), in_software(kind, s, 0)));
    }
  }
}

TEST_CASE("cuda engine: events are NaN, and infinities of finite factors") {
  std::vector<uint8_t> events;
  const Kind& kind = kKinds[1];  // sums in FP16 overflow
  const Shape s{12, 8, 16, false, true, false, 0};
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

TEST_CASE("cuda engine: without a GPU there is no device, and a reason") {
  std::string why_not;
  if (cuda::gpu_device(&why_not) != nullptr) {
    CHECK(why_not.empty());
    return;
  }
  CHECK_FALSE(why_not.empty());
}

}  // namespace lockstep
