// Products on devices, for the tests of the engine cuda: factors, layouts, and a device with a
// planted fault.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "emulation/kernels/active_kernels.h"
#include "emulation/kernels/cuda/device.h"
#include "emulation/kernels/cuda/gemm.h"
#include "src/core/random.h"

namespace lockstep {

// Values of the format, any codes among them once in `rare` (0: none).
inline std::vector<float> values_of(const Format& format, int64_t count, uint32_t stream,
                                    uint32_t rare) {
  const RandomStream random(47, RandomPurpose::kTest, stream);
  constexpr uint32_t kTf32Bits = 0xffffe000;
  std::vector<float> values(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    const auto n = static_cast<uint64_t>(i);
    const uint32_t bits = random.bits(2 * n);
    float x = static_cast<float>(round_to_format(std::ldexp(static_cast<int32_t>(bits), -31),
                                                 format, Rounding::kNearestEven));
    if (rare != 0 && random.bits(2 * n + 1) % rare == 0) {
      if (format.is_fp32() || format.is_tf32()) {
        x = std::bit_cast<float>(format.is_tf32() ? bits & kTf32Bits : bits);
      } else {
        x = static_cast<float>(decode(bits & ~0u >> (32 - format.storage_bits()), format));
      }
    }
    values[static_cast<size_t>(i)] = x;
  }
  return values;
}

struct Layout {
  int64_t m, n, k;
  bool transpose_a, transpose_b, from_c;
  int64_t spare;  // by which rows are longer than they must be
};

// C of one product by `gemm`, rows of n + spare, of which the rest must stay.
template <typename Gemm>
std::vector<float> product(const Accumulator& accumulator, const Format& fa, const Format& fb,
                           const Layout& s, uint32_t rare, Gemm gemm,
                           std::vector<uint8_t>* events = nullptr) {
  const int64_t lda = (s.transpose_a ? s.m : s.k) + s.spare;
  const int64_t ldb = (s.transpose_b ? s.k : s.n) + s.spare, ldc = s.n + s.spare;
  const std::vector<float> a = values_of(fa, (s.transpose_a ? s.k : s.m) * lda, 1, rare);
  const std::vector<float> b = values_of(fb, (s.transpose_b ? s.n : s.k) * ldb, 2, rare);
  std::vector<float> c = values_of(*accumulator.register_format, s.m * ldc, 3, rare);
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

struct Kind {
  const char *accumulator, *a, *b;
  bool runs_on_device;
};
inline constexpr Kind kKinds[] = {
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

// The same of a kind.
template <typename Gemm>
std::vector<float> product(const Kind& kind, const Layout& s, uint32_t rare, Gemm gemm,
                           std::vector<uint8_t>* events = nullptr) {
  return product(find_accumulator(kind.accumulator), find_format(kind.a), find_format(kind.b), s,
                 rare, gemm, events);
}

inline std::vector<float> in_software(const Kind& kind, const Layout& s, uint32_t rare) {
  return product(kind, s, rare, active_kernels().f32.gemm);
}
inline std::vector<float> on(cuda::Device& device, const Kind& kind, const Layout& s, uint32_t rare,
                             std::vector<uint8_t>* events = nullptr) {
  return product(
      kind, s, rare,
      [&](const GemmArgs<float>& args) {
        cuda::cuda_gemm(args, active_kernels().f32.gemm, device);
      },
      events);
}

inline bool same_bits(const std::vector<float>& x, const std::vector<float>& y) {
  return x.size() == y.size() && std::memcmp(x.data(), y.data(), x.size() * sizeof(float)) == 0;
}

// The host device with one fault.
class FaultyProducts : public cuda::Device {
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
  explicit FaultyProducts(Fault fault) : fault_(fault) {}

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

}  // namespace lockstep
