// Products decode their factors and run on the software kernel. Kernels run in loops over the
// launch.
#include <cstring>
#include <memory>
#include <vector>

#include "emulation/format/rounding.h"
#include "emulation/kernels/cuda/codes.h"
#include "emulation/kernels/cuda/device.h"
#include "src/core/chunks.h"

namespace lockstep::cuda {
namespace {

constexpr int kCapability = 90;  // of an H100
constexpr int64_t kLaunchGrain = 64;

std::vector<float> decoded(const void* data, Type type, int64_t count) {
  std::vector<float> values(static_cast<size_t>(count));
  unpack_values(data, type, values.data(), count);
  return values;
}

void round_all(std::vector<float>& values, const Format& format) {
  for (float& x : values) {
    x = static_cast<float>(round_to_format(x, format, Rounding::kNearestEven));
  }
}

class HostDevice final : public Device {
 public:
  std::string name() const override { return "host"; }
  const Hardware& hardware() const override { return *hardware_of_capability(kCapability); }
  void* allocate(size_t bytes) override { return new std::byte[bytes]; }
  void release(void* memory) override { delete[] static_cast<std::byte*>(memory); }
  void upload(void* to, const void* from, size_t bytes) override { std::memcpy(to, from, bytes); }
  void download(void* to, const void* from, size_t bytes) override { std::memcpy(to, from, bytes); }

  Algorithm multiply(const Product& p) override {
    const std::vector<float> a = decoded(p.a_data, p.a, (p.batch - 1) * p.a_step + p.m * p.k);
    const std::vector<float> b = decoded(p.b_data, p.b, (p.batch - 1) * p.b_step + p.n * p.k);
    std::vector<float> c(static_cast<size_t>(p.batch * p.m * p.n));
    for (int64_t i = 0; i < p.batch; ++i) {
      p.software({.transpose_b = true,
                  .m = p.m,
                  .n = p.n,
                  .k = p.k,
                  .a = a.data() + i * p.a_step,
                  .lda = p.k,
                  .b = b.data() + i * p.b_step,
                  .ldb = p.k,
                  .c = c.data() + i * p.m * p.n,
                  .ldc = p.n,
                  .accumulator = p.accumulator,
                  .a_format = &format_of(p.a),
                  .b_format = &format_of(p.b)});
    }
    if (const std::optional<Type> type = p.c_type()) {
      if (!p.halves) round_all(c, format_of(*type));
      pack_codes(c.data(), *type, p.c_data, std::ssize(c));
    } else {
      std::memcpy(p.c_data, c.data(), c.size() * sizeof(float));
    }
    Algorithm algorithm;
    algorithm.text = "model " + p.accumulator->name;
    return algorithm;
  }

  void launch(const Kernel& kernel) override {
    std::visit(
        [](const auto& one) {
          parallel_chunks(one.count(), kLaunchGrain, [&](int64_t begin, int64_t end) {
            for (int64_t i = begin; i < end; ++i) one(i);
          });
        },
        kernel);
  }
};

}  // namespace

Device& host_device() {
  static HostDevice device;
  return device;
}

}  // namespace lockstep::cuda
