// One set of three buffers per device, which grow and are kept. Products of several threads take
// turns.
#include "emulation/kernels/cuda/gemm.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <mutex>
#include <optional>
#include <vector>

#include "emulation/accumulator/accumulator_event.h"
#include "emulation/accumulator/fast_round.h"
#include "emulation/kernels/cuda/codes.h"
#include "src/core/chunks.h"

namespace lockstep::cuda {
namespace {

constexpr int64_t kFp8Multiple = 16;  // of cuBLAS's sizes of FP8 matrices

std::optional<Type> type_of(const Accumulator& accumulator, const Format* given) {
  const Format* format = given;
  if (format == nullptr && accumulator.operands.size() == 1) format = accumulator.operands[0];
  if (format == nullptr || !accumulator.takes(*format)) return std::nullopt;
  for (const Type type : {Type::kFp16, Type::kBf16, Type::kTf32, Type::kE4m3, Type::kE5m2}) {
    if (&format_of(type) == format) return type;
  }
  return std::nullopt;
}

bool is_fp8(Type type) {
  return bytes_of(type) == 1;
}

// A device's buffer that grows.
class Buffer {
 public:
  explicit Buffer(Device& device) : device_(device) {}
  void* reserve(size_t bytes, Traffic& traffic) {
    if (bytes > capacity_) {
      if (data_ != nullptr) device_.release(data_);
      data_ = nullptr, capacity_ = 0;
      data_ = device_.allocate(bytes);
      capacity_ = bytes;
      ++traffic.allocations;
    }
    return data_;
  }

 private:
  Device& device_;
  void* data_ = nullptr;
  size_t capacity_ = 0;
};

struct State {
  explicit State(Device& device) : a(device), b(device), c(device) {}
  std::mutex mutex;
  Buffer a, b, c;
  std::vector<std::byte> codes;
  std::vector<float> line_major, sums;
  Traffic traffic;
};

// Never destroyed: at the end of the program the driver may be gone before it.
State& state_of(Device& device) {
  static std::mutex mutex;
  static auto& states = *new std::map<Device*, State*>();
  const std::lock_guard lock(mutex);
  State*& state = states[&device];
  if (state == nullptr) state = new State(device);
  return *state;
}

int64_t padded(int64_t extent, bool pads) {
  return pads ? (extent + kFp8Multiple - 1) / kFp8Multiple * kFp8Multiple : extent;
}

// op(X) with `lines` lines of k factors, to a dense (lines_out, k_out) with zeros beyond.
struct Factors {
  const float* data;
  int64_t line_step, k_step;  // in elements
  int64_t lines, k, lines_out, k_out;
};

class DeviceGemm {
 public:
  DeviceGemm(const GemmArgs<float>& args, Type a, Type b, Device& device)
      : args_(args), device_(device), state_(state_of(device)) {
    const bool pads = is_fp8(a);
    product_ = {.a = a,
                .b = b,
                .halves = args.accumulator->block.output == BlockOutput::kFp16NearestEven,
                .adds_to_c = args.start_from_c,
                .m = padded(args.m, pads),
                .n = padded(args.n, pads),
                .k = padded(args.k, pads),
                .accumulator = args.accumulator};
  }

  void run() {
    const std::lock_guard lock(state_.mutex);
    const int64_t a_line = args_.transpose_a ? 1 : args_.lda,
                  a_k = args_.transpose_a ? args_.lda : 1;
    const int64_t b_line = args_.transpose_b ? args_.ldb : 1,
                  b_k = args_.transpose_b ? 1 : args_.ldb;
    product_.a_data = send({args_.a, a_line, a_k, args_.m, args_.k, product_.m, product_.k},
                           product_.a, state_.a);
    product_.b_data = send({args_.b, b_line, b_k, args_.n, args_.k, product_.n, product_.k},
                           product_.b, state_.b);
    product_.c_data = state_.c.reserve(bytes_of_sums(), state_.traffic);
    state_.sums.assign(static_cast<size_t>(product_.m * product_.n), 0);
    if (product_.adds_to_c) send_sums();
    const auto begin = std::chrono::steady_clock::now();
    std::string algorithm = device_.multiply(product_);
    state_.traffic.seconds +=
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    receive_sums();
    ++state_.traffic.products;
    state_.traffic.algorithms.insert_or_assign(
        fmt::format("{} x {} to {} {}x{}x{}", format_of(product_.a).name,
                    format_of(product_.b).name, product_.halves ? "fp16" : "fp32", args_.m, args_.n,
                    args_.k),
        std::move(algorithm));
  }

 private:
  size_t bytes_of_sums() const {
    return static_cast<size_t>(product_.m * product_.n) * (product_.halves ? 2 : sizeof(float));
  }

  const void* send(const Factors& x, Type type, Buffer& buffer) {
    const int64_t count = x.lines_out * x.k_out;
    const auto bytes = static_cast<size_t>(count * bytes_of(type));
    state_.codes.resize(bytes);
    pack_codes(dense(x), type, state_.codes.data(), count);
    void* memory = buffer.reserve(bytes, state_.traffic);
    device_.upload(memory, state_.codes.data(), bytes);
    state_.traffic.bytes_up += static_cast<int64_t>(bytes);
    return memory;
  }

  const float* dense(const Factors& x) {
    if (x.k_step == 1 && x.line_step == x.k_out && x.lines == x.lines_out) return x.data;
    std::vector<float>& out = state_.line_major;
    out.assign(static_cast<size_t>(x.lines_out * x.k_out), 0);
    parallel_chunks(x.lines, row_grain(x.k), [&](int64_t begin, int64_t end) {
      for (int64_t line = begin; line < end; ++line) {
        const float* from = x.data + line * x.line_step;
        float* to = out.data() + line * x.k_out;
        for (int64_t k = 0; k < x.k; ++k) to[k] = from[k * x.k_step];
      }
    });
    return out.data();
  }

  void send_sums() {
    for (int64_t i = 0; i < args_.m; ++i) {
      std::copy_n(args_.c + i * args_.ldc, args_.n, state_.sums.data() + i * product_.n);
    }
    const void* from = state_.sums.data();
    if (product_.halves) {
      state_.codes.resize(bytes_of_sums());
      pack_codes(state_.sums.data(), Type::kFp16, state_.codes.data(), product_.m * product_.n);
      from = state_.codes.data();
    }
    device_.upload(product_.c_data, from, bytes_of_sums());
    state_.traffic.bytes_up += static_cast<int64_t>(bytes_of_sums());
  }

  void receive_sums() {
    if (product_.halves) {
      state_.codes.resize(bytes_of_sums());
      device_.download(state_.codes.data(), product_.c_data, bytes_of_sums());
      unpack_values(state_.codes.data(), Type::kFp16, state_.sums.data(), product_.m * product_.n);
    } else {
      device_.download(state_.sums.data(), product_.c_data, bytes_of_sums());
    }
    state_.traffic.bytes_down += static_cast<int64_t>(bytes_of_sums());
    for (int64_t i = 0; i < args_.m; ++i) {
      const float* from = state_.sums.data() + i * product_.n;
      for (int64_t j = 0; j < args_.n; ++j) args_.c[i * args_.ldc + j] = canonical_nan(from[j]);
      if (args_.events != nullptr) note_events(from, args_.events + i * args_.n);
    }
  }

  void note_events(const float* sums, uint8_t* events) const {
    for (int64_t j = 0; j < args_.n; ++j) {
      if (std::isnan(sums[j])) events[j] |= kStepNan;
      if (std::isinf(sums[j])) events[j] |= kStepToInfinity;
    }
  }

  const GemmArgs<float>& args_;
  Device& device_;
  State& state_;
  Product product_;
};

}  // namespace

bool is_device_sum(const Accumulator& accumulator) {
  return accumulator.kind == AccumulatorKind::kAlignedBlocks;
}

void cuda_gemm(const GemmArgs<float>& args, void (*software)(const GemmArgs<float>&),
               Device& device) {
  if (!is_device_sum(*args.accumulator) || args.k == 0) return software(args);
  const std::optional<Type> a = type_of(*args.accumulator, args.a_format);
  const std::optional<Type> b = type_of(*args.accumulator, args.b_format);
  const bool halves = args.accumulator->block.output == BlockOutput::kFp16NearestEven;
  const bool is_taken = a && b && is_fp8(*a) == is_fp8(*b) &&
                        !(is_fp8(*a) && (halves || (*a == Type::kE5m2 && *b == Type::kE5m2)));
  if (!is_taken) return software(args);
  DeviceGemm(args, *a, *b, device).run();
}

Traffic traffic(Device& device) {
  State& state = state_of(device);
  const std::lock_guard lock(state.mutex);
  return state.traffic;
}

}  // namespace lockstep::cuda
