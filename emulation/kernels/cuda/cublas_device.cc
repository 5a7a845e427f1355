// cuBLAS on the machine's first GPU; in builds without CUDA, no device. Row-major C = A B' is the
// column-major C' = B A': cuBLAS sees B as its first matrix, transposed, and A as its second. Only
// this order of both exists for FP8.
#include "emulation/kernels/cuda/device.h"

#ifdef LOCKSTEP_CUDA

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <optional>
#include <stdexcept>
#include <type_traits>

#include "emulation/kernels/cuda/cublas_lt.h"
#include "emulation/kernels/cuda/device_state.h"
#include "emulation/kernels/cuda/gpu_presence.h"
#include "src/core/error.h"

namespace lockstep::cuda {
namespace lt {
namespace {

struct Loaded {
  Library functions{};
  std::string problem;
};

Loaded load() {
  Loaded loaded;
  void* handle = nullptr;
  for (const char* name : {"libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"}) {
    handle = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (handle != nullptr) break;
  }
  if (handle == nullptr) {
    loaded.problem = "no cuBLAS: libcublasLt.so.13 and .12 are not on the loader's path";
    return loaded;
  }
  const auto find = [&](auto& function, const char* name) {
    void* symbol = dlsym(handle, name);
    if (symbol == nullptr) loaded.problem = fmt::format("cuBLAS has no function {}", name);
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(symbol);
  };
  Library& l = loaded.functions;
  find(l.create, "cublasLtCreate");
  find(l.desc_create, "cublasLtMatmulDescCreate");
  find(l.desc_set, "cublasLtMatmulDescSetAttribute");
  find(l.desc_destroy, "cublasLtMatmulDescDestroy");
  find(l.layout_create, "cublasLtMatrixLayoutCreate");
  find(l.layout_set, "cublasLtMatrixLayoutSetAttribute");
  find(l.layout_destroy, "cublasLtMatrixLayoutDestroy");
  find(l.preference_create, "cublasLtMatmulPreferenceCreate");
  find(l.preference_set, "cublasLtMatmulPreferenceSetAttribute");
  find(l.preference_destroy, "cublasLtMatmulPreferenceDestroy");
  find(l.heuristic, "cublasLtMatmulAlgoGetHeuristic");
  find(l.matmul, "cublasLtMatmul");
  find(l.algo_get, "cublasLtMatmulAlgoConfigGetAttribute");
  find(l.version, "cublasLtGetVersion");
  return loaded;
}

}  // namespace

const Library* library(std::string* why_not) {
  static const Loaded loaded = load();
  if (loaded.problem.empty()) return &loaded.functions;
  if (why_not != nullptr) *why_not = loaded.problem;
  return nullptr;
}

}  // namespace lt

namespace {

// Nothing is lost: steps are recorded one by one.
[[noreturn]] void fail(const std::string& what) {
  throw InputError(what, "steps that were recorded are kept, and --resume continues the run");
}

void check(cudaError_t status, const char* what) {
  if (status != cudaSuccess) fail(fmt::format("GPU: {}: {}", what, cudaGetErrorString(status)));
}
void check_lt(lt::Status status, const char* what) {
  if (status != 0) fail(fmt::format("cuBLAS: {}: status {}", what, status));
}

int type_number(Type type) {
  switch (type) {
    case Type::kFp16:
      return lt::kF16;
    case Type::kBf16:
      return lt::kBf16;
    case Type::kTf32:
      return lt::kF32;
    case Type::kE4m3:
      return lt::kE4m3;
    case Type::kE5m2:
      return lt::kE5m2;
  }
  throw std::logic_error("type_number: unknown type");
}

// The largest power of two, up to what the library assumes by itself, that divides the address.
uint32_t alignment_of(const void* data) {
  constexpr uintptr_t kMost = 256;
  const auto address = reinterpret_cast<uintptr_t>(data) | kMost;
  return static_cast<uint32_t>(address & -address);
}

// A descriptor that is destroyed with the scope.
template <typename T>
class Owned {
 public:
  explicit Owned(lt::Status (*destroy)(T)) : destroy_(destroy) {}
  ~Owned() {
    if (value_ != nullptr) destroy_(value_);
  }
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  T* out() { return &value_; }
  T get() const { return value_; }

 private:
  lt::Status (*destroy_)(T);
  T value_ = nullptr;
};

class CublasDevice final : public Device {
 public:
  CublasDevice(const lt::Library& library, const cudaDeviceProp& properties,
               const Hardware& hardware)
      : lt_(library), name_(properties.name), hardware_(hardware) {
    check_lt(lt_.create(&handle_), "cublasLtCreate");
    name_ += fmt::format(", cuBLASLt {}", lt_.version());
  }

  std::string name() const override { return name_; }
  const Hardware& hardware() const override { return hardware_; }
  void* allocate(size_t bytes) override {
    void* memory = nullptr;
    const cudaError_t status = cudaMalloc(&memory, bytes);
    if (status == cudaErrorMemoryAllocation) {
      cudaGetLastError();  // clears the error
      throw InputError(fmt::format("GPU: no memory for {} bytes", bytes),
                       "start again with a smaller --batch");
    }
    check(status, "cudaMalloc");
    return memory;
  }
  void release(void* memory) override { check(cudaFree(memory), "cudaFree"); }
  void upload(void* to, const void* from, size_t bytes) override {
    check(cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice), "copying to the GPU");
  }
  void download(void* to, const void* from, size_t bytes) override {
    check(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToHost), "copying from the GPU");
  }

  Algorithm multiply(const Product& p) override {
    const bool is_fp8 = bytes_of(p.a) == 1;
    const int compute = p.halves             ? lt::kCompute16F
                        : p.a == Type::kTf32 ? lt::kCompute32FTf32
                                             : lt::kCompute32F;
    const int sum_type = p.halves ? lt::kF16 : lt::kF32;
    const std::optional<Type> narrow = p.c_type();
    const int c_type = narrow ? type_number(*narrow) : lt::kF32;
    Owned<lt::MatmulDesc> desc(lt_.desc_destroy);
    check_lt(lt_.desc_create(desc.out(), compute, sum_type), "cublasLtMatmulDescCreate");
    const int32_t transpose = lt::kTranspose, none = lt::kNone;
    set(desc, lt::kTransA, transpose);
    set(desc, lt::kTransB, none);
    if (is_fp8) {
      // Without promotion the sums stay in the tensor core.
      set(desc, lt::kFastAccumulation,
          static_cast<int8_t>(p.accumulator->block.promotion_interval == 0));
    }
    Owned<lt::Layout> a(lt_.layout_destroy), b(lt_.layout_destroy), c(lt_.layout_destroy);
    make_layout(a, type_number(p.a), p.k, p.m, p.batch, p.a_step);
    make_layout(b, type_number(p.b), p.k, p.n, p.batch, p.b_step);
    make_layout(c, c_type, p.n, p.m, p.batch, p.m * p.n);

    Owned<lt::Preference> preference(lt_.preference_destroy);
    check_lt(lt_.preference_create(preference.out()), "cublasLtMatmulPreferenceCreate");
    const LibraryRules& rules = p.accumulator->library;
    const auto workspace_bytes = static_cast<uint64_t>(rules.workspace_bytes);
    const bool adds_narrow = !p.narrow_results || rules.adds_parts_narrow;
    const uint32_t schemes = !rules.splits_k ? lt::kNoParts
                             : adds_narrow   ? lt::kAllSchemes
                                             : lt::kPartsInSums;
    prefer(preference, lt::kMostWorkspace, workspace_bytes);
    prefer(preference, lt::kReductionSchemes, schemes);
    prefer(preference, lt::kAlignmentA, alignment_of(p.b_data));  // the library's A is our B
    prefer(preference, lt::kAlignmentB, alignment_of(p.a_data));
    prefer(preference, lt::kAlignmentC, alignment_of(p.c_data));
    prefer(preference, lt::kAlignmentD, alignment_of(p.c_data));
    lt::Heuristic chosen{};
    int found = 0;
    const lt::Status status = lt_.heuristic(handle_, desc.get(), b.get(), a.get(), c.get(), c.get(),
                                            preference.get(), 1, &chosen, &found);
    if ((status != 0 || found == 0) && p.batch > 1) return multiply_one_by_one(p);
    if (status != 0 || found == 0) {
      fail(fmt::format("cuBLAS: no algorithm for {} x {}, {}x{}x{}, batch {} (status {}){}",
                       format_of(p.a).name, format_of(p.b).name, p.m, p.n, p.k, p.batch, status,
                       rules.splits_k ? "" : "; [cuda] split_k = false leaves out some"));
    }
    const float one = 1, zero = 0;
    const uint16_t half_one = 0x3c00, half_zero = 0;
    const void* alpha = p.halves ? static_cast<const void*>(&half_one) : &one;
    const void* weight = p.halves ? static_cast<const void*>(&half_zero) : &zero;
    check_lt(lt_.matmul(handle_, desc.get(), alpha, p.b_data, b.get(), p.a_data, a.get(), weight,
                        p.c_data, c.get(), p.c_data, c.get(), &chosen.algo,
                        workspace_.reserve(chosen.workspace), chosen.workspace, nullptr),
             "cublasLtMatmul");
    check(cudaStreamSynchronize(nullptr), "cublasLtMatmul");
    return described(chosen.algo);
  }

  void launch(const Kernel& kernel) override {
    const std::string problem = launch_on_gpu(kernel);
    if (!problem.empty()) fail("GPU: a kernel: " + problem);
  }

 private:
  // For batches without an algorithm. Returns: that of the last product.
  Algorithm multiply_one_by_one(const Product& p) {
    const auto at = [](auto* data, int64_t bytes) {
      using Byte = std::conditional_t<std::is_const_v<std::remove_pointer_t<decltype(data)>>,
                                      const std::byte, std::byte>;
      return static_cast<Byte*>(data) + bytes;
    };
    Algorithm algorithm;
    for (int64_t i = 0; i < p.batch; ++i) {
      Product one = p;
      one.batch = 1;
      one.a_data = at(p.a_data, i * p.a_step * bytes_of(p.a));
      one.b_data = at(p.b_data, i * p.b_step * bytes_of(p.b));
      one.c_data = at(p.c_data, i * p.m * p.n * p.c_width());
      algorithm = multiply(one);
    }
    return algorithm;
  }
  template <typename T>
  void set(const Owned<lt::MatmulDesc>& desc, int attribute, const T& value) const {
    check_lt(lt_.desc_set(desc.get(), attribute, &value, sizeof value),
             "cublasLtMatmulDescSetAttribute");
  }
  template <typename T>
  void prefer(const Owned<lt::Preference>& preference, int attribute, const T& value) const {
    check_lt(lt_.preference_set(preference.get(), attribute, &value, sizeof value),
             "cublasLtMatmulPreferenceSetAttribute");
  }
  // Makes a layout of dense columns. `step`: from one matrix of the batch to the next, in elements.
  void make_layout(Owned<lt::Layout>& out, int type, int64_t rows, int64_t cols, int64_t batch,
                   int64_t step) const {
    check_lt(lt_.layout_create(out.out(), type, static_cast<uint64_t>(rows),
                               static_cast<uint64_t>(cols), rows),
             "cublasLtMatrixLayoutCreate");
    if (batch == 1) return;
    const auto count = static_cast<int32_t>(batch);
    check_lt(lt_.layout_set(out.get(), lt::kBatchCount, &count, sizeof count),
             "cublasLtMatrixLayoutSetAttribute");
    check_lt(lt_.layout_set(out.get(), lt::kBatchStep, &step, sizeof step),
             "cublasLtMatrixLayoutSetAttribute");
  }
  Algorithm described(const lt::Algo& algo) const {
    const auto number = [&](int attribute) {
      int32_t value = -1;
      size_t written = 0;
      lt_.algo_get(&algo, attribute, &value, sizeof value, &written);
      return value;
    };
    Algorithm found;
    found.id = number(lt::kId), found.tile = number(lt::kTile);
    found.stages = number(lt::kStages), found.split_k = number(lt::kSplitK);
    found.reduction = number(lt::kReduction);
    found.most_parts = std::max(1, found.split_k);
    found.text = fmt::format("id {} tile {} stages {} split-k {} reduction {}", found.id,
                             found.tile, found.stages, found.split_k, found.reduction);
    return found;
  }

  const lt::Library& lt_;
  lt::Handle handle_ = nullptr;
  std::string name_;
  const Hardware& hardware_;
  Buffer workspace_{*this};
};

struct Found {
  std::unique_ptr<CublasDevice> device;
  std::string why_not;
};

Found find_gpu() {
  Found found;
  found.why_not = why_no_gpu();
  if (!found.why_not.empty()) return found;
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, 0), "properties");
  const int capability = 10 * properties.major + properties.minor;
  const Hardware* hardware = hardware_of_capability(capability);
  if (hardware == nullptr) {
    found.why_not = fmt::format("{} (compute capability {}): no model of its tensor cores",
                                properties.name, capability / 10.0);
    return found;
  }
  const lt::Library* library = lt::library(&found.why_not);
  if (library != nullptr) {
    found.device = std::make_unique<CublasDevice>(*library, properties, *hardware);
  }
  return found;
}

}  // namespace

Device* gpu_device(std::string* why_not) {
  static const Found& found = *new Found(find_gpu());
  if (found.device == nullptr && why_not != nullptr) *why_not = found.why_not;
  return found.device.get();
}

}  // namespace lockstep::cuda

#else

namespace lockstep::cuda {

Device* gpu_device(std::string* why_not) {
  if (why_not != nullptr) *why_not = "built without CUDA (-DLOCKSTEP_CUDA=ON)";
  return nullptr;
}

std::string why_no_kernels() {
  return "built without CUDA (-DLOCKSTEP_CUDA=ON)";
}

}  // namespace lockstep::cuda

#endif
