// One store of factors and one buffer of results per device. Products of several threads take
// turns.
#include "emulation/kernels/cuda/gemm.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "emulation/accumulator/accumulator_event.h"
#include "emulation/accumulator/fast_round.h"
#include "emulation/kernels/cuda/codes.h"
#include "emulation/kernels/cuda/device_state.h"
#include "emulation/kernels/cuda/factor_store.h"
#include "emulation/kernels/cuda/quantize.h"
#include "src/core/chunks.h"
#include "src/core/counted.h"

namespace lockstep::cuda {
namespace {

constexpr int64_t kFp8Multiple = 16;  // of cuBLAS's sizes of FP8 matrices

bool is_fp8(Type type) {
  return bytes_of(type) == 1;
}

bool has_halves(const Accumulator& accumulator) {
  return accumulator.block.output == BlockOutput::kFp16NearestEven;
}

struct State {
  explicit State(Device& device) : factors(device), c(device), quantizer(device) {}
  std::mutex mutex;
  FactorStore factors;
  Buffer c;
  DeviceQuantizer quantizer;
  std::vector<std::byte> codes;
  std::vector<float> line_major, sums;
  Traffic traffic;
  DeviceWork work;  // since take_work
};

State& state_of(Device& device) {
  return DeviceStates<State>::of(device);
}

int64_t padded(int64_t extent, bool pads) {
  return pads ? (extent + kFp8Multiple - 1) / kFp8Multiple * kFp8Multiple : extent;
}

// op(X) with `lines` lines of k factors, to a dense (lines_out, k_out) with zeros beyond.
struct Factors {
  int operand;  // 0: A, 1: B
  const float* data;
  int64_t line_step, k_step;  // in elements
  int64_t lines, k, lines_out, k_out;
  const std::vector<int64_t>& matrices;  // of X, as in StackedGemm
};

class DeviceGemm {
 public:
  DeviceGemm(const StackedGemm<float>& stack, Type a, Type b, Device& device,
             void (*software)(const GemmArgs<float>&))
      : stack_(stack), args_(stack.product), device_(device), state_(state_of(device)) {
    const bool pads = is_fp8(a);
    product_ = {.a = a,
                .b = b,
                .halves = has_halves(*args_.accumulator),
                .m = padded(args_.m, pads),
                .n = padded(args_.n, pads),
                .k = padded(args_.k, pads),
                .batch = stack.count,
                .accumulator = args_.accumulator,
                .software = software};
    product_.narrow_results =
        args_.accumulator->library.narrow_results && a == b && bytes_of(a) == 2;
  }

  // `rounding`: of the results on the device, or null.
  void run(const GemmRounding* rounding = nullptr) {
    const std::lock_guard lock(state_.mutex);
    const int64_t a_line = args_.transpose_a ? 1 : args_.lda,
                  a_k = args_.transpose_a ? args_.lda : 1;
    const int64_t b_line = args_.transpose_b ? args_.ldb : 1,
                  b_k = args_.transpose_b ? 1 : args_.ldb;
    product_.a_data =
        send({0, args_.a, a_line, a_k, args_.m, args_.k, product_.m, product_.k, stack_.a_matrices},
             product_.a, product_.a_step);
    product_.b_data =
        send({1, args_.b, b_line, b_k, args_.n, args_.k, product_.n, product_.k, stack_.b_matrices},
             product_.b, product_.b_step);
    product_.c_data = state_.c.reserve(bytes_of_sums());
    const auto begin = std::chrono::steady_clock::now();
    Algorithm algorithm = device_.multiply(product_);
    state_.traffic.seconds +=
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    const bool only_rounded =
        rounding != nullptr && !rounding->spec.measure_only && args_.events == nullptr;
    if (!only_rounded) receive_sums();
    if (rounding != nullptr) round_sums(*rounding);
    ++state_.traffic.products;
    ++state_.work.products;
    state_.work.note({.m = args_.m,
                      .n = args_.n,
                      .k = args_.k,
                      .batch = stack_.count,
                      .algorithm = algorithm.id,
                      .tile = algorithm.tile,
                      .stages = algorithm.stages,
                      .split_k = algorithm.split_k,
                      .reduction = algorithm.reduction,
                      .most_parts = algorithm.most_parts});
    state_.traffic.algorithms.insert_or_assign(
        product_text(args_, format_of(product_.a), format_of(product_.b), stack_.count),
        std::move(algorithm));
  }

 private:
  int64_t count_of_sums() const { return product_.batch * product_.m * product_.n; }
  size_t bytes_of_sums() const { return static_cast<size_t>(count_of_sums() * product_.c_width()); }

  const void* send(const Factors& x, Type type, int64_t& step) {
    const std::vector<int64_t>& matrices = x.matrices;
    const bool is_shared =
        !matrices.empty() && std::ranges::count(matrices, matrices.front()) == std::ssize(matrices);
    const int64_t sent = is_shared ? 1 : product_.batch, count = x.lines_out * x.k_out;
    step = is_shared ? 0 : count;
    const int64_t matrix_bytes = count * bytes_of(type);
    state_.work.bytes_kept += (product_.batch - sent) * matrix_bytes;
    const auto bytes = static_cast<size_t>(sent * matrix_bytes);
    state_.codes.resize(bytes);
    for (int64_t i = 0; i < sent; ++i) {
      const int64_t matrix = matrices.empty() ? i : matrices[static_cast<size_t>(i)];
      Factors one = x;
      one.data += matrix * x.lines * x.k;
      pack_codes(dense(one), type, state_.codes.data() + i * matrix_bytes, count);
    }
    const FactorStore::Stored stored = state_.factors.put(
        {x.operand, x.data, x.line_step, x.k_step, x.lines_out, x.k_out, sent, type}, state_.codes);
    if (stored.was_there) {
      state_.work.bytes_kept += static_cast<int64_t>(bytes);
    } else {
      state_.traffic.bytes_up += static_cast<int64_t>(bytes);
      state_.work.bytes_up += static_cast<int64_t>(bytes);
    }
    return stored.memory;
  }

  const float* dense(const Factors& x) {
    const bool is_dense = x.k_step == 1 && x.line_step == x.k_out && x.k == x.k_out;
    if (is_dense && x.lines == x.lines_out) return x.data;
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

  // The sums are on the device.
  void round_sums(const GemmRounding& rounding) {
    const NumbersOnDevice sums{.words = {product_.c_data, count_of_sums(), product_.halves ? 2 : 4},
                               .count = stack_.count * args_.m * args_.n,
                               .rows = args_.m,
                               .columns = args_.n,
                               .row_step = product_.n,
                               .matrix_step = product_.m * product_.n};
    const CopiedBytes copied = state_.quantizer.run(sums, rounding.spec, args_.c, rounding.stats);
    state_.traffic.bytes_up += copied.up, state_.traffic.bytes_down += copied.down;
    state_.work.bytes_up += copied.up, state_.work.bytes_down += copied.down;
    ++state_.traffic.roundings;
  }

  void receive_sums() {
    state_.sums.resize(static_cast<size_t>(count_of_sums()));
    if (const std::optional<Type> type = product_.c_type()) {
      state_.codes.resize(bytes_of_sums());
      device_.download(state_.codes.data(), product_.c_data, bytes_of_sums());
      unpack_values(state_.codes.data(), *type, state_.sums.data(), std::ssize(state_.sums));
    } else {
      device_.download(state_.sums.data(), product_.c_data, bytes_of_sums());
    }
    state_.traffic.bytes_down += static_cast<int64_t>(bytes_of_sums());
    state_.work.bytes_down += static_cast<int64_t>(bytes_of_sums());
    for (int64_t matrix = 0; matrix < stack_.count; ++matrix) {
      const GemmArgs<float> one = stack_.one(matrix);
      for (int64_t i = 0; i < one.m; ++i) {
        const float* from = state_.sums.data() + (matrix * product_.m + i) * product_.n;
        for (int64_t j = 0; j < one.n; ++j) one.c[i * one.ldc + j] = canonical_nan(from[j]);
        if (one.events != nullptr) note_events(one, i, from);
      }
    }
  }

  // Notes the events of row i of the results.
  static void note_events(const GemmArgs<float>& args, int64_t i, const float* sums) {
    uint8_t* events = args.events + i * args.n;
    for (int64_t j = 0; j < args.n; ++j) {
      if (std::isnan(sums[j])) events[j] |= kStepNan;
      if (std::isinf(sums[j]) && has_finite_factors(args, i, j)) events[j] |= kStepToInfinity;
    }
  }
  static bool has_finite_factors(const GemmArgs<float>& args, int64_t i, int64_t j) {
    for (int64_t k = 0; k < args.k; ++k) {
      const float a = args.transpose_a ? args.a[k * args.lda + i] : args.a[i * args.lda + k];
      const float b = args.transpose_b ? args.b[j * args.ldb + k] : args.b[k * args.ldb + j];
      if (!std::isfinite(a) || !std::isfinite(b)) return false;
    }
    return true;
  }

  const StackedGemm<float>& stack_;
  const GemmArgs<float>& args_;  // its first product
  Device& device_;
  State& state_;
  Product product_;
};

// Products first..end - 1.
StackedGemm<float> part_of(const StackedGemm<float>& stack, int64_t first, int64_t end) {
  StackedGemm<float> part = stack;
  GemmArgs<float>& of = part.product;
  part.count = end - first;
  const auto cut = [&](std::vector<int64_t>& matrices) {
    if (matrices.empty()) return false;
    matrices = {matrices.begin() + first, matrices.begin() + end};
    return true;
  };
  if (!cut(part.a_matrices)) of.a += first * of.m * of.k;
  if (!cut(part.b_matrices)) of.b += first * of.k * of.n;
  of.c += first * of.m * of.n;
  if (of.events != nullptr) of.events += first * of.m * of.n;
  return part;
}

// Whether the device forms this product.
bool is_device_product(const GemmArgs<float>& args) {
  return args.k != 0 && !args.start_from_c &&
         is_device_sum(*args.accumulator, args.a_format, args.b_format);
}

}  // namespace

bool is_device_sum(const Accumulator& accumulator, const Format* a, const Format* b) {
  const bool is_of_libraries =
      accumulator.kind == AccumulatorKind::kAlignedBlocks && !accumulator.block.factors_as_fp16 &&
      accumulator.name.find('+') == std::string::npos && !accumulator.name.ends_with("_wmma");
  const std::optional<Type> x = type_of(accumulator, a), y = type_of(accumulator, b);
  if (!is_of_libraries || !x || !y || is_fp8(*x) != is_fp8(*y)) return false;
  return !is_fp8(*x) || !(has_halves(accumulator) || (*x == Type::kE5m2 && *y == Type::kE5m2));
}

bool cuda_rounded_gemm(const GemmArgs<float>& args, const GemmRounding& rounding,
                       void (*software)(const GemmArgs<float>&), Device& device) {
  // What the library has rounded comes back as it is.
  if (args.accumulator->library.narrow_results) return false;
  if (!is_device_product(args) || !DeviceQuantizer::rounds(rounding.spec)) return false;
  const StackedGemm<float> one{args};
  DeviceGemm(one, *type_of(*args.accumulator, args.a_format),
             *type_of(*args.accumulator, args.b_format), device, software)
      .run(&rounding);
  return true;
}

bool cuda_stacked_gemm(const StackedGemm<float>& stack, void (*software)(const GemmArgs<float>&),
                       Device& device, int64_t most_elements) {
  const GemmArgs<float>& args = stack.product;
  if (stack.count == 0 || !is_device_product(args)) return false;
  const Type a = *type_of(*args.accumulator, args.a_format),
             b = *type_of(*args.accumulator, args.b_format);
  const int64_t elements = args.m * args.k + args.k * args.n + args.m * args.n;
  const int64_t at_once = std::max<int64_t>(1, most_elements / elements);
  for (int64_t first = 0; first < stack.count; first += at_once) {
    const StackedGemm<float> piece =
        at_once >= stack.count ? stack
                               : part_of(stack, first, std::min(first + at_once, stack.count));
    DeviceGemm(piece, a, b, device, software).run();
  }
  return true;
}

void cuda_gemm(const GemmArgs<float>& args, void (*software)(const GemmArgs<float>&),
               Device& device) {
  if (!cuda_stacked_gemm({args}, software, device)) software(args);
}

std::string product_text(const GemmArgs<float>& args, const Format& a, const Format& b,
                         int64_t batch) {
  const LibraryRules& rules = args.accumulator->library;
  return fmt::format("{} {} x {} {}x{}x{}{}{}{}", args.accumulator->name, a.name, b.name, args.m,
                     args.n, args.k, batch == 1 ? "" : fmt::format(" batch {}", batch),
                     rules.splits_k ? "" : " without split-K",
                     rules.narrow_results ? " narrow results" : "");
}

std::string traffic_text() {
  std::string text;
  for (const auto& [device, state] : DeviceStates<State>::all()) {
    const Traffic done = traffic(*device);
    if (done.products == 0) continue;
    const auto split = std::ranges::count_if(
        done.algorithms, [](const auto& row) { return row.second.most_parts > 1; });
    text += fmt::format(
        "{}: {} of {} in {:.1f} s; {} rounded there; {:.1f} MB copied there, {:.1f} MB back.\n",
        device->name(), counted(static_cast<uint64_t>(done.products), "product"),
        counted(done.algorithms.size(), "size"), done.seconds,
        counted(static_cast<uint64_t>(done.roundings), "result"),
        static_cast<double>(done.bytes_up) / 1e6, static_cast<double>(done.bytes_down) / 1e6);
    if (split > 0) {
      text += fmt::format(
          "The sums of {} of these may be split into parts, as software lanes never do.\n", split);
    }
  }
  return text;
}

DeviceWork take_work(Device& device) {
  State& state = state_of(device);
  const std::lock_guard lock(state.mutex);
  return std::exchange(state.work, {});
}

Traffic traffic(Device& device) {
  State& state = state_of(device);
  const std::lock_guard lock(state.mutex);
  Traffic done = state.traffic;
  done.allocations =
      state.factors.allocations() + state.c.allocations() + state.quantizer.allocations();
  return done;
}

}  // namespace lockstep::cuda
