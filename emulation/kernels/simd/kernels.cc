// The scalar set with the entries that vectors speed up.
#include "emulation/kernels/simd/kernels.h"

#include "emulation/kernels/scalar/kernels.h"
#include "emulation/kernels/simd/batch_norm.h"
#include "emulation/kernels/simd/block_quantize.h"
#include "emulation/kernels/simd/compact.h"
#include "emulation/kernels/simd/conv2d.h"
#include "emulation/kernels/simd/elementwise.h"
#include "emulation/kernels/simd/functions.h"
#include "emulation/kernels/simd/gemm.h"
#include "emulation/kernels/simd/optimizer.h"
#include "emulation/kernels/simd/pool2d.h"
#include "emulation/kernels/simd/quantize.h"
#include "emulation/kernels/simd/recurrent.h"
#include "emulation/kernels/simd/reduce.h"
#include "emulation/kernels/simd/row_norm.h"
#include "emulation/kernels/simd/select.h"
#include "emulation/kernels/simd/whole_array.h"

namespace lockstep {
namespace {

KernelSet make_set(SimdTarget target, std::string_view name, std::string_view help) {
  KernelSet set = scalar_kernels();
  set.name = name;
  set.help = help;
  use_simd_quantize(set, target);
  use_simd_block_quantize(set, target);
  use_simd_whole_array(set, target);
  use_simd_compact(set, target);
  use_simd_sums(set, target);
  use_simd_elementwise(set, target);
  use_simd_select(set, target);
  use_simd_functions(set, target);
  use_simd_row_norm(set, target);
  use_simd_batch_norm(set, target);
  use_simd_max_pool2d(set, target);
  use_simd_cells(set, target);
  use_simd_optimizer(set, target);
  use_simd_gemm(set, target);
  use_simd_conv2d(set, target);
  return set;
}

}  // namespace

const KernelSet& avx2_kernels() {
  static const KernelSet set = make_set(SimdTarget::kAvx2, "avx2", "AVX2 and FMA, 8 floats wide");
  return set;
}
const KernelSet& avx512_kernels() {
  static const KernelSet set =
      make_set(SimdTarget::kAvx512, "avx512", "AVX-512 F, BW, CD, DQ and VL, 16 floats wide");
  return set;
}

}  // namespace lockstep
