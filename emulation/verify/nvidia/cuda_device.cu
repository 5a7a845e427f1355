// The GPU as a device: tiles are made, multiplied and checked in its memory, or copied from the
// host. The model for the check is tile_dot, the same source as on the host.
#include <cuda_runtime.h>

#include <algorithm>
#include <stdexcept>
#include <string>

#include "emulation/kernels/cuda/gpu_presence.h"
#include "emulation/verify/nvidia/mma_device.h"
#include "emulation/verify/nvidia/mma_kernels.h"

namespace lockstep::mma {
namespace kernels {

constexpr int kThreads = 256;

// The arguments of a launch. Kernels take them by value.
struct Job {
  Shape shape;
  CaseStream stream;
  uint64_t first_tile;
  int64_t count;
  bool from_zero;
  uint32_t *a, *b, *c, *d;
};

struct RuleSet {
  Rule rules[kMostRules];
  int count;
};

// Mismatches of each rule, and the first mismatch of the first rule.
struct Counters {
  unsigned long long mismatches[kMostRules];
  unsigned long long first;
};

__device__ int64_t first_index() {
  return static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}
__device__ int64_t index_step() {
  return static_cast<int64_t>(gridDim.x) * blockDim.x;
}

__device__ Tile tile_of(const Job& job, int64_t t) {
  return {job.a + t * job.shape.a_words(), job.b + t * job.shape.b_words(),
          job.c + t * job.shape.c_words()};
}

__global__ void make_words(Job job, Matrix matrix, uint32_t* words, int words_per_tile) {
  for (int64_t i = first_index(); i < job.count * words_per_tile; i += index_step()) {
    const uint64_t tile = job.first_tile + static_cast<uint64_t>(i / words_per_tile);
    const TileDesign design = design_tile(job.stream, job.shape, tile);
    words[i] = case_word(job.stream, design, job.shape, tile, matrix,
                         static_cast<int>(i % words_per_tile));
  }
}

// After A, B and C are made.
__global__ void cancel_addends(Job job, Rule rule) {
  const int words_per_tile = job.shape.c_words();
  for (int64_t i = first_index(); i < job.count * words_per_tile; i += index_step()) {
    const int64_t t = i / words_per_tile;
    const uint64_t number = job.first_tile + static_cast<uint64_t>(t);
    if (design_tile(job.stream, job.shape, number).pattern != Pattern::kCancelAddend) continue;
    job.c[i] = cancelling_word(job.stream, rule, job.shape, tile_of(job, t), number,
                               static_cast<int>(i % words_per_tile));
  }
}

__global__ void judge(Job job, RuleSet set, Counters* counters) {
  const Shape& shape = job.shape;
  const BlockEncoding e = shape.accumulator();
  const int outputs = shape.outputs();
  for (int64_t i = first_index(); i < job.count * outputs; i += index_step()) {
    const int64_t t = i / outputs;
    const int row = static_cast<int>(i % outputs) / shape.n;
    const int column = static_cast<int>(i % outputs) % shape.n;
    const Tile tile = tile_of(job, t);
    const uint32_t start = job.from_zero ? 0 : tile_addend(shape, tile, row, column);
    const uint32_t result = packed_number(job.d + t * shape.c_words() + row * shape.c_row_words(),
                                          column, e.storage_bits);
    for (int r = 0; r < set.count; ++r) {
      if (tile_dot(set.rules[r], shape, tile, row, column, start) == result) continue;
      atomicAdd(&counters->mismatches[r], 1ull);
      const uint64_t place =
          job.first_tile * static_cast<uint64_t>(outputs) + static_cast<uint64_t>(i);
      if (r == 0) atomicMin(&counters->first, static_cast<unsigned long long>(place));
    }
  }
}

}  // namespace kernels

namespace {

void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  throw std::runtime_error(std::string("GPU: ") + what + ": " + cudaGetErrorString(status));
}

// Device memory that grows to the requested size and is kept.
template <typename T>
class GpuArray {
 public:
  GpuArray() = default;
  ~GpuArray() { cudaFree(data_); }
  GpuArray(const GpuArray&) = delete;
  GpuArray& operator=(const GpuArray&) = delete;

  T* reserve(size_t count) {
    if (count > capacity_) {
      check(cudaFree(data_), "cudaFree");
      data_ = nullptr;
      check(cudaMalloc(reinterpret_cast<void**>(&data_), count * sizeof(T)), "cudaMalloc");
      capacity_ = count;
    }
    return data_;
  }
  void upload(const std::vector<T>& values) {
    check(cudaMemcpy(reserve(values.size()), values.data(), values.size() * sizeof(T),
                     cudaMemcpyHostToDevice),
          "copying to the GPU");
  }
  void download(std::vector<T>& values) const {
    check(cudaMemcpy(values.data(), data_, values.size() * sizeof(T), cudaMemcpyDeviceToHost),
          "copying from the GPU");
  }

 private:
  T* data_ = nullptr;
  size_t capacity_ = 0;
};

class CudaDevice : public Device {
 public:
  explicit CudaDevice(const cudaDeviceProp& properties) {
    capability_ = 10 * properties.major + properties.minor;
    int driver = 0, runtime = 0;
    check(cudaDriverGetVersion(&driver), "driver version");
    check(cudaRuntimeGetVersion(&runtime), "runtime version");
    description_ = std::string(properties.name) + ", compute capability " +
                   std::to_string(properties.major) + "." + std::to_string(properties.minor) +
                   ", " + std::to_string(properties.multiProcessorCount) +
                   " multiprocessors, CUDA driver " + version_text(driver) + ", runtime " +
                   version_text(runtime);
  }

  std::string description() const override { return description_; }
  int capability() const override { return capability_; }

  std::vector<uint32_t> multiply(const Instruction& instruction, bool from_zero,
                                 const TileBatch& tiles) override {
    a_.upload(tiles.a);
    b_.upload(tiles.b);
    c_.upload(tiles.c);
    std::vector<uint32_t> d(tiles.c.size());
    d_.reserve(d.size());
    run(instruction, from_zero, tiles.count);
    d_.download(d);
    return d;
  }

  Verdict compare(const Comparison& comparison) override {
    if (comparison.rules.empty() || comparison.rules.size() > kMostRules) {
      throw std::logic_error("compare: one to " + std::to_string(kMostRules) + " rules");
    }
    kernels::RuleSet set{};
    set.count = static_cast<int>(comparison.rules.size());
    std::copy(comparison.rules.begin(), comparison.rules.end(), set.rules);
    kernels::Counters counters{};
    counters.first = Verdict::kNone;
    std::vector<kernels::Counters> transfer = {counters};
    counters_.upload(transfer);

    const Shape& shape = comparison.instruction.shape;
    const uint64_t most = std::max<uint64_t>(kBatchOutputs / shape.outputs(), 1);
    for (uint64_t done = 0; done < comparison.tile_count; done += most) {
      const auto count = static_cast<int64_t>(std::min(most, comparison.tile_count - done));
      kernels::Job job{.shape = shape,
                       .stream = comparison.stream,
                       .first_tile = comparison.first_tile + done,
                       .count = count,
                       .from_zero = comparison.from_zero,
                       .a = a_.reserve(count * shape.a_words()),
                       .b = b_.reserve(count * shape.b_words()),
                       .c = c_.reserve(count * shape.c_words()),
                       .d = d_.reserve(count * shape.c_words())};
      using kernels::kThreads;
      const auto blocks = [count](int per_tile) {
        return static_cast<unsigned>(
            std::min<int64_t>((count * per_tile + kThreads - 1) / kThreads, kMostBlocks));
      };
      kernels::make_words<<<blocks(shape.a_words()), kThreads>>>(job, Matrix::kA, job.a,
                                                                 shape.a_words());
      kernels::make_words<<<blocks(shape.b_words()), kThreads>>>(job, Matrix::kB, job.b,
                                                                 shape.b_words());
      kernels::make_words<<<blocks(shape.c_words()), kThreads>>>(job, Matrix::kC, job.c,
                                                                 shape.c_words());
      kernels::cancel_addends<<<blocks(shape.c_words()), kThreads>>>(job, set.rules[0]);
      check(cudaGetLastError(), "making cases");
      run(comparison.instruction, comparison.from_zero, count);
      kernels::judge<<<blocks(shape.outputs()), kThreads>>>(job, set, counters_.reserve(1));
      check(cudaGetLastError(), "judging");
    }
    check(cudaDeviceSynchronize(), "judging");
    counters_.download(transfer);
    Verdict verdict;
    verdict.mismatches.assign(transfer[0].mismatches, transfer[0].mismatches + set.count);
    verdict.first_mismatch = transfer[0].first;
    return verdict;
  }

 private:
  static constexpr uint64_t kBatchOutputs = uint64_t{1} << 22;  // about 100 MB of tiles
  static constexpr int64_t kMostBlocks = 1 << 16;

  static std::string version_text(int version) {  // 13000 is 13.0
    return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
  }

  void run(const Instruction& instruction, bool from_zero, int64_t count) {
    const LaunchFunction launch = find_kernel(instruction);
    if (launch == nullptr || !instruction.runs_on(capability_)) {
      throw std::logic_error(instruction.name() + ": not on this GPU");
    }
    const Shape& shape = instruction.shape;
    uint32_t* d = d_.reserve(count * shape.c_words());
    // This pattern shows results that an instruction does not write.
    check(cudaMemset(d, 0xa5, count * shape.c_words() * sizeof(uint32_t)), "cudaMemset");
    launch({a_.reserve(count * shape.a_words()), b_.reserve(count * shape.b_words()),
            c_.reserve(count * shape.c_words()), d, count},
           from_zero);
    const std::string name = instruction.name();
    check(cudaGetLastError(), name.c_str());
    check(cudaDeviceSynchronize(), name.c_str());
  }

  int capability_;
  std::string description_;
  GpuArray<uint32_t> a_, b_, c_, d_;
  GpuArray<kernels::Counters> counters_;
};

std::unique_ptr<Device> open_device(std::string& why_not) {
  why_not = cuda::why_no_gpu();
  if (!why_not.empty()) return nullptr;
  cudaDeviceProp properties;
  check(cudaGetDeviceProperties(&properties, 0), "properties");
  cudaFuncAttributes attributes;
  if (cudaFuncGetAttributes(&attributes, kernels::judge) != cudaSuccess) {
    cudaGetLastError();
    why_not = std::string("this build has no code for ") + properties.name + " (sm_" +
              std::to_string(properties.major) + std::to_string(properties.minor) + ")";
    return nullptr;
  }
  return std::make_unique<CudaDevice>(properties);
}

}  // namespace

Device* cuda_device(std::string* why_not) {
  static std::string reason;
  static const std::unique_ptr<Device> device = open_device(reason);
  if (device == nullptr && why_not != nullptr) *why_not = reason;
  return device.get();
}

}  // namespace lockstep::mma
