// The device interface of the `cuda` engine.
// Memory, copies, matrix products, and kernels of the project's own. Two devices have this
// interface: cuBLAS on the machine's first GPU, and the host, which stands in for a GPU with the
// software kernels, so that packing, shapes, buffers and fallbacks run where there is none. Knows
// nothing of lanes and tensors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "emulation/accumulator/accumulator.h"
#include "emulation/kernels/args/gemm_args.h"
#include "emulation/kernels/cuda/kernel.h"

namespace lockstep::cuda {

// The layout of factors in a device's memory. TF32 factors are FP32 words.
enum class Type : uint8_t { kFp16, kBf16, kTf32, kE4m3, kE5m2 };
const Format& format_of(Type type);
int64_t bytes_of(Type type);

// C[m,n] = sum over k of A[m,k] * B[n,k], for every matrix of a batch. A (M,K), B (N,K), C (M,N),
// all row-major, dense, in the device's memory.
struct Product {
  Type a = Type::kFp16, b = Type::kFp16;
  bool halves = false;          // the sums are FP16, else FP32
  bool narrow_results = false;  // C has the type of A: FP16 or BF16, rounded from FP32 sums
  int64_t m = 0, n = 0, k = 0;
  int64_t batch = 1;
  // From one matrix of the batch to the next, in factors; 0: all use the same. Those of C lie one
  // after the other.
  int64_t a_step = 0, b_step = 0;
  const void *a_data = nullptr, *b_data = nullptr;
  void* c_data = nullptr;
  // The model of the sum that the lane declares, and the software kernel that forms such sums. A
  // GPU sums as its library chooses, within the accumulator's LibraryRules.
  const Accumulator* accumulator = nullptr;
  void (*software)(const GemmArgs<float>&) = nullptr;

  std::optional<Type> c_type() const {  // none: FP32
    if (halves) return Type::kFp16;
    return narrow_results ? std::optional(a) : std::nullopt;
  }
  int64_t c_width() const {  // bytes
    const std::optional<Type> type = c_type();
    return type ? bytes_of(*type) : static_cast<int64_t>(sizeof(float));
  }
};

// How a device formed a product.
struct Algorithm {
  std::string text;  // "id 66 tile 20 stages 36 split-k 1 reduction 0"
  // The library's numbers; -1: it has none.
  int id = -1, tile = -1, stages = -1, split_k = -1, reduction = -1;
  int most_parts = 1;  // upper limit of the parts into which k may be split
};

// Devices live until the program ends: the engine keeps their buffers.
class Device {
 public:
  virtual ~Device() = default;
  virtual std::string name() const = 0;  // "NVIDIA H100 80GB HBM3"
  virtual const Hardware& hardware() const = 0;
  // Throws, as all below: InputError if the device fails or has too little memory.
  virtual void* allocate(size_t bytes) = 0;
  virtual void release(void* memory) = 0;
  virtual void upload(void* to, const void* from, size_t bytes) = 0;
  virtual void download(void* to, const void* from, size_t bytes) = 0;
  virtual Algorithm multiply(const Product& product) = 0;
  virtual void launch(const Kernel& kernel) = 0;
};

// The machine's first GPU through cuBLAS, the same object at every call; or null and the reason: no
// nvcc at build time, no driver, no GPU, no cuBLAS, or no model of this chip's tensor cores.
Device* gpu_device(std::string* why_not = nullptr);
// Models an H100: memory is the host's, products are those of the accumulator that the lane
// declares.
Device& host_device();

}  // namespace lockstep::cuda
