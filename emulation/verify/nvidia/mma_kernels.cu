// The instructions themselves: one kernel per row of the instruction table. One warp (mma.sync,
// WMMA) or four (wgmma) compute a tile. Operands are read and written as packed words at the places
// that mma_layout.h gives, except for WMMA: only WMMA's own loads know the layout of its fragments.
// In the code for a chip, instructions that the chip lacks have empty kernels; callers of
// find_kernel check the table first.
#include "emulation/verify/nvidia/mma_kernels.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <mma.h>

#include <type_traits>

namespace lockstep::mma {
// Has a name, so that nvcc does not warn about the instructions that a chip lacks.
namespace kernels {

#ifdef __CUDA_ARCH__
constexpr int kCapability = __CUDA_ARCH__ / 10;
#else
constexpr int kCapability = 0;
#endif
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
constexpr bool kHasWgmma = true;
#else
constexpr bool kHasWgmma = false;
#endif

constexpr int kMmaM = 16, kMmaN = 8, kWmmaN = 16, kWgmmaM = 64;
constexpr int kMostRegisters = 4;
constexpr int kBlockWarps = 4;

template <Type kA, Type kB, bool kHalves, int kK>
constexpr Shape kSyncShape = {kA, kB, kHalves, kMmaM, kMmaN, kK};

// Operand lists of mma.sync by the words of a row (4 or 8) and the type of D. D's registers are
// C's.
#define LOCKSTEP_ASM_8_F32(text)                                                            \
  float f0 = __uint_as_float(d[0]), f1 = __uint_as_float(d[1]), f2 = __uint_as_float(d[2]), \
        f3 = __uint_as_float(d[3]);                                                         \
  asm volatile(text " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"      \
               : "+f"(f0), "+f"(f1), "+f"(f2), "+f"(f3)                                     \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));         \
  d[0] = __float_as_uint(f0), d[1] = __float_as_uint(f1), d[2] = __float_as_uint(f2),       \
  d[3] = __float_as_uint(f3);
#define LOCKSTEP_ASM_4_F32(text)                                                            \
  float f0 = __uint_as_float(d[0]), f1 = __uint_as_float(d[1]), f2 = __uint_as_float(d[2]), \
        f3 = __uint_as_float(d[3]);                                                         \
  asm volatile(text " {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"                  \
               : "+f"(f0), "+f"(f1), "+f"(f2), "+f"(f3)                                     \
               : "r"(a[0]), "r"(a[1]), "r"(b[0]));                                          \
  d[0] = __float_as_uint(f0), d[1] = __float_as_uint(f1), d[2] = __float_as_uint(f2),       \
  d[3] = __float_as_uint(f3);
#define LOCKSTEP_ASM_8_F16(text)                                       \
  asm volatile(text " {%0, %1}, {%2, %3, %4, %5}, {%6, %7}, {%0, %1};" \
               : "+r"(d[0]), "+r"(d[1])                                \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#define LOCKSTEP_ASM_4_F16(text)                           \
  asm volatile(text " {%0, %1}, {%2, %3}, {%4}, {%0, %1};" \
               : "+r"(d[0]), "+r"(d[1])                    \
               : "r"(a[0]), "r"(a[1]), "r"(b[0]));

// X(A, B, D is FP16, k, capability, operand list, PTX)
#define LOCKSTEP_SYNC(X)                                                                       \
  X(kFp16, kFp16, false, 16, 80, 8_F32, "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32")   \
  X(kFp16, kFp16, false, 8, 75, 4_F32, "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32")     \
  X(kFp16, kFp16, true, 16, 80, 8_F16, "mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16")    \
  X(kFp16, kFp16, true, 8, 75, 4_F16, "mma.sync.aligned.m16n8k8.row.col.f16.f16.f16.f16")      \
  X(kBf16, kBf16, false, 16, 80, 8_F32, "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32") \
  X(kBf16, kBf16, false, 8, 80, 4_F32, "mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32")   \
  X(kTf32, kTf32, false, 8, 80, 8_F32, "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32")   \
  X(kTf32, kTf32, false, 4, 80, 4_F32, "mma.sync.aligned.m16n8k4.row.col.f32.tf32.tf32.f32")   \
  X(kE4m3, kE4m3, false, 32, 89, 8_F32, "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32") \
  X(kE4m3, kE5m2, false, 32, 89, 8_F32, "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e5m2.f32") \
  X(kE5m2, kE4m3, false, 32, 89, 8_F32, "mma.sync.aligned.m16n8k32.row.col.f32.e5m2.e4m3.f32") \
  X(kE5m2, kE5m2, false, 32, 89, 8_F32, "mma.sync.aligned.m16n8k32.row.col.f32.e5m2.e5m2.f32") \
  X(kE4m3, kE4m3, true, 32, 89, 8_F16, "mma.sync.aligned.m16n8k32.row.col.f16.e4m3.e4m3.f16")  \
  X(kE4m3, kE5m2, true, 32, 89, 8_F16, "mma.sync.aligned.m16n8k32.row.col.f16.e4m3.e5m2.f16")  \
  X(kE5m2, kE4m3, true, 32, 89, 8_F16, "mma.sync.aligned.m16n8k32.row.col.f16.e5m2.e4m3.f16")  \
  X(kE5m2, kE5m2, true, 32, 89, 8_F16, "mma.sync.aligned.m16n8k32.row.col.f16.e5m2.e5m2.f16")

template <Type kA, Type kB, bool kHalves, int kK>
struct Sync;
#define LOCKSTEP_DEFINE_SYNC(A, B, halves, k, capability, operands, text)           \
  template <>                                                                       \
  struct Sync<Type::A, Type::B, halves, k> {                                        \
    static constexpr bool kExists = kCapability >= capability;                      \
    __device__ static void run(const uint32_t* a, const uint32_t* b, uint32_t* d) { \
      if constexpr (kExists) {                                                      \
        LOCKSTEP_ASM_##operands(text)                                               \
      }                                                                             \
    }                                                                               \
  };
LOCKSTEP_SYNC(LOCKSTEP_DEFINE_SYNC)

template <Type kA, Type kB, bool kHalves, int kK>
__global__ void __launch_bounds__(kBlockWarps* kWarpLanes) sync_kernel(DeviceTiles tiles) {
  constexpr Shape kShape = kSyncShape<kA, kB, kHalves, kK>;
  constexpr int kBRegisters = kShape.row_words() / kGroupWords, kARegisters = 2 * kBRegisters;
  constexpr int kCRegisters = kHalves ? 2 : 4;
  const int lane = threadIdx.x % kWarpLanes;
  // Whole warps return or continue together, as the instruction requires.
  const int64_t t = static_cast<int64_t>(blockIdx.x) * kBlockWarps + threadIdx.x / kWarpLanes;
  if (t >= tiles.count) return;
  uint32_t a[kMostRegisters], b[kMostRegisters], d[kMostRegisters];
  for (int r = 0; r < kARegisters; ++r) {
    const WordPlace at = a_word(lane, r);
    a[r] = tiles.a[t * kShape.a_words() + at.row * kShape.row_words() + at.word];
  }
  for (int r = 0; r < kBRegisters; ++r) {
    const WordPlace at = b_word(lane, r);
    b[r] = tiles.b[t * kShape.b_words() + at.row * kShape.row_words() + at.word];
  }
  for (int r = 0; r < kCRegisters; ++r) {
    const WordPlace at = c_word(lane, r, kHalves);
    d[r] = tiles.c[t * kShape.c_words() + at.row * kShape.c_row_words() + at.word];
  }
  Sync<kA, kB, kHalves, kK>::run(a, b, d);
  for (int r = 0; r < kCRegisters; ++r) {
    const WordPlace at = c_word(lane, r, kHalves);
    tiles.d[t * kShape.c_words() + at.row * kShape.c_row_words() + at.word] = d[r];
  }
}

// X(type, D is FP16, k)
#define LOCKSTEP_WMMA(X) \
  X(kFp16, false, 16) X(kFp16, true, 16) X(kBf16, false, 16) X(kTf32, false, 8)

template <Type kType>
struct WmmaTypes;
template <>
struct WmmaTypes<Type::kFp16> {
  using Fragment = half;
  using Memory = half;
};
// mma.h declares these for the chips that have them, and for the host pass.
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
template <>
struct WmmaTypes<Type::kBf16> {
  using Fragment = __nv_bfloat16;
  using Memory = __nv_bfloat16;
};
template <>
struct WmmaTypes<Type::kTf32> {
  using Fragment = nvcuda::wmma::precision::tf32;
  using Memory = float;  // loaded unchanged: no conversion to TF32
};
#endif

template <Type kType, bool kHalves, int kK>
__global__ void __launch_bounds__(kBlockWarps* kWarpLanes) wmma_kernel(DeviceTiles tiles) {
  if constexpr (kCapability >= (kType == Type::kFp16 ? 75 : 80)) {
    using Types = WmmaTypes<kType>;
    namespace wmma = nvcuda::wmma;
    using Memory = typename Types::Memory;
    using Sum = std::conditional_t<kHalves, half, float>;
    constexpr Shape kShape = {kType, kType, kHalves, kMmaM, kWmmaN, kK};
    const int64_t t = static_cast<int64_t>(blockIdx.x) * kBlockWarps + threadIdx.x / kWarpLanes;
    if (t >= tiles.count) return;
    wmma::fragment<wmma::matrix_a, kMmaM, kWmmaN, kK, typename Types::Fragment, wmma::row_major> a;
    wmma::fragment<wmma::matrix_b, kMmaM, kWmmaN, kK, typename Types::Fragment, wmma::col_major> b;
    wmma::fragment<wmma::accumulator, kMmaM, kWmmaN, kK, Sum> d;
    wmma::load_matrix_sync(a, reinterpret_cast<const Memory*>(tiles.a + t * kShape.a_words()), kK);
    wmma::load_matrix_sync(b, reinterpret_cast<const Memory*>(tiles.b + t * kShape.b_words()), kK);
    wmma::load_matrix_sync(d, reinterpret_cast<const Sum*>(tiles.c + t * kShape.c_words()), kWmmaN,
                           wmma::mem_row_major);
    wmma::mma_sync(d, a, b, d);
    wmma::store_matrix_sync(reinterpret_cast<Sum*>(tiles.d + t * kShape.c_words()), d, kWmmaN,
                            wmma::mem_row_major);
  }
}

// wgmma from its fence to its end in one statement, so that no register of D is accessed in
// between. The 16-bit types have two more immediates (no transposition).
#define LOCKSTEP_WGMMA_ASM(text, registers, a, b, scale, tail)                       \
  "{\n.reg .pred p;\nsetp.ne.b32 p, " scale ", 0;\nwgmma.fence.sync.aligned;\n" text \
  " {" registers "}, " a ", " b ", p, 1, 1" tail                                     \
  ";\nwgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;\n}\n"
#define LOCKSTEP_WGMMA_F32(text, tail)                                                      \
  float f0 = __uint_as_float(d[0]), f1 = __uint_as_float(d[1]), f2 = __uint_as_float(d[2]), \
        f3 = __uint_as_float(d[3]);                                                         \
  asm volatile(LOCKSTEP_WGMMA_ASM(text, "%0, %1, %2, %3", "%4", "%5", "%6", tail)           \
               : "+f"(f0), "+f"(f1), "+f"(f2), "+f"(f3)                                     \
               : "l"(a), "l"(b), "r"(scale)                                                 \
               : "memory");                                                                 \
  d[0] = __float_as_uint(f0), d[1] = __float_as_uint(f1), d[2] = __float_as_uint(f2),       \
  d[3] = __float_as_uint(f3);
#define LOCKSTEP_WGMMA_F16(text, tail)                                    \
  asm volatile(LOCKSTEP_WGMMA_ASM(text, "%0, %1", "%2", "%3", "%4", tail) \
               : "+r"(d[0]), "+r"(d[1])                                   \
               : "l"(a), "l"(b), "r"(scale)                               \
               : "memory");

// X(A, B, D is FP16, k, operand list, PTX, further immediates)
#define LOCKSTEP_WGMMA(X)                                                                          \
  X(kFp16, kFp16, false, 16, F32, "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16", ", 0, 0")   \
  X(kFp16, kFp16, true, 16, F16, "wgmma.mma_async.sync.aligned.m64n8k16.f16.f16.f16", ", 0, 0")    \
  X(kBf16, kBf16, false, 16, F32, "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16", ", 0, 0") \
  X(kTf32, kTf32, false, 8, F32, "wgmma.mma_async.sync.aligned.m64n8k8.f32.tf32.tf32", "")         \
  X(kE4m3, kE4m3, false, 32, F32, "wgmma.mma_async.sync.aligned.m64n8k32.f32.e4m3.e4m3", "")       \
  X(kE4m3, kE5m2, false, 32, F32, "wgmma.mma_async.sync.aligned.m64n8k32.f32.e4m3.e5m2", "")       \
  X(kE5m2, kE4m3, false, 32, F32, "wgmma.mma_async.sync.aligned.m64n8k32.f32.e5m2.e4m3", "")       \
  X(kE5m2, kE5m2, false, 32, F32, "wgmma.mma_async.sync.aligned.m64n8k32.f32.e5m2.e5m2", "")       \
  X(kE4m3, kE4m3, true, 32, F16, "wgmma.mma_async.sync.aligned.m64n8k32.f16.e4m3.e4m3", "")        \
  X(kE4m3, kE5m2, true, 32, F16, "wgmma.mma_async.sync.aligned.m64n8k32.f16.e4m3.e5m2", "")        \
  X(kE5m2, kE4m3, true, 32, F16, "wgmma.mma_async.sync.aligned.m64n8k32.f16.e5m2.e4m3", "")        \
  X(kE5m2, kE5m2, true, 32, F16, "wgmma.mma_async.sync.aligned.m64n8k32.f16.e5m2.e5m2", "")

template <Type kA, Type kB, bool kHalves, int kK>
struct Wgmma;
#define LOCKSTEP_DEFINE_WGMMA(A, B, halves, k, operands, text, tail)             \
  template <>                                                                    \
  struct Wgmma<Type::A, Type::B, halves, k> {                                    \
    __device__ static void run(uint64_t a, uint64_t b, int scale, uint32_t* d) { \
      if constexpr (kHasWgmma) {                                                 \
        LOCKSTEP_WGMMA_##operands(text, tail)                                    \
      }                                                                          \
    }                                                                            \
  };
LOCKSTEP_WGMMA(LOCKSTEP_DEFINE_WGMMA)

template <Type kA, Type kB, bool kHalves, int kK>
__global__ void __launch_bounds__(kBlockWarps* kWarpLanes)
    wgmma_kernel(DeviceTiles tiles, bool from_zero) {
  if constexpr (kHasWgmma) {
    constexpr Shape kShape = {kA, kB, kHalves, kWgmmaM, kMmaN, kK};
    static_assert(kShape.row_words() == kWgmmaWords);
    constexpr int kCRegisters = kHalves ? 2 : 4, kWarpRows = 16;
    __shared__ alignas(kCoreBytes) uint32_t a[kShape.a_words()], b[kShape.b_words()];
    const int64_t t = blockIdx.x;
    for (int i = threadIdx.x; i < kShape.a_words(); i += blockDim.x) {
      a[core_matrix_word(i / kWgmmaWords, i % kWgmmaWords)] = tiles.a[t * kShape.a_words() + i];
    }
    for (int i = threadIdx.x; i < kShape.b_words(); i += blockDim.x) {
      b[core_matrix_word(i / kWgmmaWords, i % kWgmmaWords)] = tiles.b[t * kShape.b_words() + i];
    }
    // wgmma reads shared memory through the asynchronous proxy.
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();

    const int lane = threadIdx.x % kWarpLanes, first_row = threadIdx.x / kWarpLanes * kWarpRows;
    uint32_t d[kMostRegisters];
    for (int r = 0; r < kCRegisters; ++r) {
      const WordPlace at = c_word(lane, r, kHalves);
      d[r] = tiles.c[t * kShape.c_words() + (first_row + at.row) * kShape.c_row_words() + at.word];
    }
    const auto descriptor = [](const uint32_t* shared) {
      return matrix_descriptor(static_cast<uint32_t>(__cvta_generic_to_shared(shared)));
    };
    Wgmma<kA, kB, kHalves, kK>::run(descriptor(a), descriptor(b), from_zero ? 0 : 1, d);
    for (int r = 0; r < kCRegisters; ++r) {
      const WordPlace at = c_word(lane, r, kHalves);
      tiles.d[t * kShape.c_words() + (first_row + at.row) * kShape.c_row_words() + at.word] = d[r];
    }
  }
}

unsigned blocks_of(int64_t tiles, int tiles_per_block) {
  return static_cast<unsigned>((tiles + tiles_per_block - 1) / tiles_per_block);
}
constexpr int kBlockThreads = kBlockWarps * kWarpLanes;

template <Type kA, Type kB, bool kHalves, int kK>
void launch_sync(const DeviceTiles& tiles, bool) {
  sync_kernel<kA, kB, kHalves, kK><<<blocks_of(tiles.count, kBlockWarps), kBlockThreads>>>(tiles);
}
template <Type kType, bool kHalves, int kK>
void launch_wmma(const DeviceTiles& tiles, bool) {
  wmma_kernel<kType, kHalves, kK><<<blocks_of(tiles.count, kBlockWarps), kBlockThreads>>>(tiles);
}
template <Type kA, Type kB, bool kHalves, int kK>
void launch_wgmma(const DeviceTiles& tiles, bool from_zero) {
  wgmma_kernel<kA, kB, kHalves, kK><<<blocks_of(tiles.count, 1), kBlockThreads>>>(tiles, from_zero);
}

struct KernelRow {
  Family family;
  Shape shape;
  LaunchFunction launch;
};
const KernelRow kKernels[] = {
#define LOCKSTEP_SYNC_ROW(A, B, halves, k, capability, operands, text) \
  {Family::kMmaSync, kSyncShape<Type::A, Type::B, halves, k>,          \
   launch_sync<Type::A, Type::B, halves, k>},
    LOCKSTEP_SYNC(LOCKSTEP_SYNC_ROW)
#define LOCKSTEP_WGMMA_ROW(A, B, halves, k, operands, text, tail) \
  {Family::kWgmma,                                                \
   {Type::A, Type::B, halves, kWgmmaM, kMmaN, k},                 \
   launch_wgmma<Type::A, Type::B, halves, k>},
        LOCKSTEP_WGMMA(LOCKSTEP_WGMMA_ROW)
#define LOCKSTEP_WMMA_ROW(type, halves, k)             \
  {Family::kWmma,                                      \
   {Type::type, Type::type, halves, kMmaM, kWmmaN, k}, \
   launch_wmma<Type::type, halves, k>},
            LOCKSTEP_WMMA(LOCKSTEP_WMMA_ROW)};

}  // namespace kernels

LaunchFunction find_kernel(const Instruction& instruction) {
  for (const kernels::KernelRow& row : kernels::kKernels) {
    if (row.family == instruction.family && row.shape == instruction.shape) return row.launch;
  }
  return nullptr;
}

}  // namespace lockstep::mma
