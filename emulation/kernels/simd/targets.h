// The instruction sets that the vector code is built for.
// Every file in this folder compiles once for AVX2 (with FMA) and once for AVX-512 (Highway's
// AVX3); the CPU decides at run time. A CPU without them runs the scalar kernels. The skeleton of
// such a file:
//
//   #include "emulation/kernels/simd/targets.h"
//   #undef HWY_TARGET_INCLUDE
//   #define HWY_TARGET_INCLUDE "emulation/kernels/simd/NAME.cc"
//   #include <hwy/foreach_target.h>      // includes this very file once per target
//   #include <hwy/highway.h>
//   HWY_BEFORE_NAMESPACE();
//   namespace lockstep {
//   namespace HWY_NAMESPACE {
//   #if LOCKSTEP_SIMD_TARGET             // false for the baseline target, which stays empty
//   namespace hn = hwy::HWY_NAMESPACE;
//   void thing(...) { ... }
//   #endif
//   }  // namespace HWY_NAMESPACE
//   }  // namespace lockstep
//   HWY_AFTER_NAMESPACE();
//   #if HWY_ONCE                         // the explicit entry points, one per instruction set
//   namespace lockstep {
//   void avx2_thing(...) { N_AVX2::thing(...); }
//   void avx512_thing(...) { N_AVX3::thing(...); }
//   }
//   #endif
#pragma once

// The SSE targets would never be used. The baseline target cannot be disabled; it stays empty.
// A file may define HWY_WANT_AVX3_DL to be compiled for that target, too.
#ifdef HWY_WANT_AVX3_DL
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4)
#else
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)
#endif

#include <hwy/targets.h>

// Expanded where it is used, once per target.
#define LOCKSTEP_SIMD_TARGET (HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3)

namespace lockstep {

// True if this CPU (and its operating system) runs the set. Otherwise the entry points of the set
// must not be called.
inline bool cpu_has_avx2() {
  return (hwy::SupportedTargets() & HWY_AVX2) != 0;
}
inline bool cpu_has_avx512() {
  return (hwy::SupportedTargets() & HWY_AVX3) != 0;
}

}  // namespace lockstep
