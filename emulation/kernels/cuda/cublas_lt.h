// The part of cuBLASLt's C interface that the engine calls, loaded when the program runs: a program
// built here starts where the library is absent. Numbers and layouts are the library's (versions 12
// and 13); nothing of its headers is needed.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <string>

namespace lockstep::cuda::lt {

using Handle = struct HandleTag*;
using MatmulDesc = struct MatmulDescTag*;
using Layout = struct LayoutTag*;
using Preference = struct PreferenceTag*;
using Status = int;  // 0: success

struct Algo {
  uint64_t data[8];
};
struct Heuristic {
  Algo algo;
  size_t workspace;
  Status state;
  float waves;
  int reserved[4];
};

// cudaDataType_t
enum DataType : int { kF32 = 0, kF16 = 2, kBf16 = 14, kE4m3 = 28, kE5m2 = 29 };
// cublasComputeType_t
enum Compute : int { kCompute16F = 64, kCompute32F = 68, kCompute32FTf32 = 77 };
// cublasOperation_t
enum Operation : int { kNone = 0, kTranspose = 1 };
// cublasLtMatmulDescAttributes_t
enum DescAttribute : int {
  kTransA = 3,
  kTransB = 4,
  kFastAccumulation = 25,
};
// cublasLtMatrixLayoutAttribute_t
enum LayoutAttribute : int { kBatchCount = 5, kBatchStep = 6 };
// cublasLtMatmulPreferenceAttributes_t
enum PreferenceAttribute : int {
  kMostWorkspace = 1,
  kReductionSchemes = 3,
  kAlignmentA = 5,
  kAlignmentB = 6,
  kAlignmentC = 7,
  kAlignmentD = 8,
};
// cublasLtReductionScheme_t, as a mask: how parts of sums may be added
enum ReductionScheme : uint32_t { kNoParts = 0, kPartsInSums = 2, kAllSchemes = 7 };
// cublasLtMatmulAlgoConfigAttributes_t
enum AlgoAttribute : int { kId = 0, kTile = 1, kSplitK = 2, kReduction = 3, kStages = 6 };

struct Library {
  Status (*create)(Handle*);
  Status (*desc_create)(MatmulDesc*, int compute, int scale_type);
  Status (*desc_set)(MatmulDesc, int attribute, const void*, size_t);
  Status (*desc_destroy)(MatmulDesc);
  Status (*layout_create)(Layout*, int type, uint64_t rows, uint64_t cols, int64_t ld);
  Status (*layout_set)(Layout, int attribute, const void*, size_t);
  Status (*layout_destroy)(Layout);
  Status (*preference_create)(Preference*);
  Status (*preference_set)(Preference, int attribute, const void*, size_t);
  Status (*preference_destroy)(Preference);
  Status (*heuristic)(Handle, MatmulDesc, Layout a, Layout b, Layout c, Layout d, Preference,
                      int wanted, Heuristic*, int* found);
  Status (*matmul)(Handle, MatmulDesc, const void* alpha, const void* a, Layout, const void* b,
                   Layout, const void* beta, const void* c, Layout, void* d, Layout, const Algo*,
                   void* workspace, size_t, cudaStream_t);
  Status (*algo_get)(const Algo*, int attribute, void*, size_t, size_t* written);
  size_t (*version)();
};

// Null and the reason if the library or one of its functions is missing.
const Library* library(std::string* why_not);

}  // namespace lockstep::cuda::lt
