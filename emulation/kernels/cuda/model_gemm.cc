// Factors are packed row by row as they lie, copied to the device, multiplied by one launch, and
// the sums are copied back. Buffers grow and are kept; products of several threads take turns.
#include "emulation/kernels/cuda/model_gemm.h"

#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <vector>

#include "emulation/accumulator/dot.h"
#include "emulation/accumulator/fast_round.h"
#include "emulation/kernels/cuda/codes.h"
#include "emulation/kernels/cuda/device_state.h"
#include "emulation/kernels/cuda/quantize.h"
#include "src/core/chunks.h"
#include "src/core/counted.h"

namespace lockstep::cuda {
namespace {

constexpr int kWordBits = 32;

// How the words of a product are stored. FP32 words are copied as those of TF32 are.
struct Types {
  Type a = Type::kTf32, b = Type::kTf32, sums = Type::kTf32;
};

// FP8 factors that an instruction converts to FP16 are stored as FP16.
std::optional<Type> stored_type(const Accumulator& accumulator, const Format* given) {
  const std::optional<Type> type = type_of(accumulator, given);
  return type && accumulator.block.factors_as_fp16 ? Type::kFp16 : type;
}

std::optional<Types> types_of(const Accumulator& accumulator, const Format* a, const Format* b) {
  if (is_float_chain(accumulator)) return Types();
  if (accumulator.kind != AccumulatorKind::kAlignedBlocks) return std::nullopt;
  const std::optional<Type> x = stored_type(accumulator, a), y = stored_type(accumulator, b);
  if (!x || !y) return std::nullopt;
  const bool halves = accumulator.block.output == BlockOutput::kFp16NearestEven;
  return Types{*x, *y, halves ? Type::kFp16 : Type::kTf32};
}

BlockEncoding encoding_of(Type type) {
  const Format& format = format_of(type);
  const int bits = static_cast<int>(format.storage_bits());
  return {.precision = format.precision,
          .emin = format.emin,
          .storage_bits = bits,
          .has_infinity = format.has_infinity,
          .ignored_bits = type == Type::kTf32 ? kWordBits - bits : 0};
}

struct State {
  explicit State(Device& device)
      : a(device), b(device), c(device), events(device), quantizer(device) {}
  std::mutex mutex;
  Buffer a, b, c, events;
  DeviceQuantizer quantizer;
  std::vector<std::byte> codes;
  std::vector<float> values;
  int64_t products = 0, roundings = 0, bytes_up = 0, bytes_down = 0;
};

State& state_of(Device& device) {
  return DeviceStates<State>::of(device);
}

// A matrix in the host's memory: rows of `cols` floats, `stride` apart.
struct HostMatrix {
  const float* data;
  int64_t rows, cols, stride;
};

class ModelGemm {
 public:
  ModelGemm(const GemmArgs<float>& args, const Types& types, Device& device)
      : args_(args), types_(types), device_(device), state_(state_of(device)) {}

  // `rounding`: of the results on the device, or null.
  void run(const GemmRounding* rounding = nullptr) {
    const std::lock_guard lock(state_.mutex);
    ProductArrays arrays;
    arrays.m = args_.m, arrays.n = args_.n, arrays.k = args_.k;
    arrays.a = send_factors(args_.a, args_.m, args_.transpose_a, args_.lda, types_.a, state_.a);
    arrays.b = send_factors(args_.b, args_.n, !args_.transpose_b, args_.ldb, types_.b, state_.b);
    arrays.c = words(args_.m * args_.n, types_.sums, state_.c);
    arrays.start_from_c = args_.start_from_c;
    if (args_.start_from_c) send({args_.c, args_.m, args_.n, args_.ldc}, types_.sums, arrays.c);
    if (args_.events != nullptr) {
      arrays.events = {static_cast<uint8_t*>(state_.events.reserve(event_bytes())),
                       args_.m * args_.n};
      upload(arrays.events.data, args_.events, event_bytes());
    }
    multiply(arrays);
    if (rounding == nullptr || rounding->spec.measure_only) receive_sums(arrays);
    if (rounding != nullptr) round_sums(arrays, *rounding);
    if (args_.events != nullptr) download(args_.events, arrays.events.data, event_bytes());
    ++state_.products;
  }

 private:
  size_t event_bytes() const { return static_cast<size_t>(args_.m * args_.n); }

  Words words(int64_t count, Type type, Buffer& buffer) {
    const auto width = static_cast<int>(bytes_of(type));
    return {buffer.reserve(static_cast<size_t>(count * width)), count, width};
  }
  void upload(void* to, const void* from, size_t bytes) {
    device_.upload(to, from, bytes);
    state_.bytes_up += static_cast<int64_t>(bytes);
  }
  void download(void* to, const void* from, size_t bytes) {
    device_.download(to, from, bytes);
    state_.bytes_down += static_cast<int64_t>(bytes);
  }

  // `columns`: the lines are the matrix's columns.
  FactorLines send_factors(const float* data, int64_t lines, bool columns, int64_t stride,
                           Type type, Buffer& buffer) {
    const HostMatrix matrix{data, columns ? args_.k : lines, columns ? lines : args_.k, stride};
    const Words there = words(lines * args_.k, type, buffer);
    send(matrix, type, there);
    return {there, columns ? 1 : args_.k, columns ? lines : 1};
  }

  void send(const HostMatrix& matrix, Type type, const Words& to) {
    const auto bytes = static_cast<size_t>(to.count * to.bytes);
    state_.codes.resize(bytes);
    parallel_chunks(matrix.rows, row_grain(matrix.cols), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        pack_codes(matrix.data + row * matrix.stride, type,
                   state_.codes.data() + row * matrix.cols * to.bytes, matrix.cols);
      }
    });
    upload(to.data, state_.codes.data(), bytes);
  }

  void multiply(const ProductArrays& arrays) {
    if (is_float_chain(*args_.accumulator)) {
      device_.launch(ChainProduct{arrays, FloatChain(*args_.accumulator->format)});
    } else {
      device_.launch(BlockProduct{arrays, args_.accumulator->block, encoding_of(types_.a),
                                  encoding_of(types_.b)});
    }
  }

  // The sums are on the device.
  void round_sums(const ProductArrays& arrays, const GemmRounding& rounding) {
    const NumbersOnDevice sums{.words = arrays.c, .count = arrays.c.count};
    const CopiedBytes copied = state_.quantizer.run(sums, rounding.spec, args_.c, rounding.stats);
    state_.bytes_up += copied.up, state_.bytes_down += copied.down;
    ++state_.roundings;
  }

  void receive_sums(const ProductArrays& arrays) {
    const auto bytes = static_cast<size_t>(arrays.c.count * arrays.c.bytes);
    state_.codes.resize(bytes);
    state_.values.resize(static_cast<size_t>(arrays.c.count));
    download(state_.codes.data(), arrays.c.data, bytes);
    unpack_values(state_.codes.data(), types_.sums, state_.values.data(), arrays.c.count);
    parallel_chunks(args_.m, row_grain(args_.n), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        for (int64_t j = 0; j < args_.n; ++j) {
          args_.c[i * args_.ldc + j] = canonical_nan(state_.values[i * args_.n + j]);
        }
      }
    });
  }

  const GemmArgs<float>& args_;
  Types types_;
  Device& device_;
  State& state_;
};

}  // namespace

bool is_model_sum(const Accumulator& accumulator, const Format* a, const Format* b) {
  return types_of(accumulator, a, b).has_value();
}

void model_gemm(const GemmArgs<float>& args, void (*software)(const GemmArgs<float>&),
                Device& device, int64_t least_products) {
  const std::optional<Types> types = types_of(*args.accumulator, args.a_format, args.b_format);
  if (!types || args.k == 0 || args.m * args.n * args.k < least_products) return software(args);
  ModelGemm(args, *types, device).run();
}

bool model_rounded_gemm(const GemmArgs<float>& args, const GemmRounding& rounding, Device& device,
                        int64_t least_products) {
  const std::optional<Types> types = types_of(*args.accumulator, args.a_format, args.b_format);
  if (!types || args.k == 0 || args.m * args.n * args.k < least_products) return false;
  if (!DeviceQuantizer::rounds(rounding.spec)) return false;
  ModelGemm(args, *types, device).run(&rounding);
  return true;
}

int64_t model_products(Device& device) {
  State& state = state_of(device);
  const std::lock_guard lock(state.mutex);
  return state.products;
}

std::string model_text() {
  std::string text;
  for (const auto& [device, state] : DeviceStates<State>::all()) {
    const std::lock_guard products(state->mutex);
    if (state->products == 0) continue;
    text += fmt::format(
        "{}: {} of software lanes by the models' kernels; {} rounded there; {:.1f} MB copied "
        "there, {:.1f} MB back.\n",
        device->name(), counted(static_cast<uint64_t>(state->products), "product"),
        counted(static_cast<uint64_t>(state->roundings), "result"),
        static_cast<double>(state->bytes_up) / 1e6, static_cast<double>(state->bytes_down) / 1e6);
  }
  return text;
}

}  // namespace lockstep::cuda
