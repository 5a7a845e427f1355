// The scalar set with the entries that vectors speed up.
#include "emulation/kernels/simd/kernels.h"

#include "emulation/kernels/scalar/kernels.h"
#include "emulation/kernels/simd/convolution/conv2d.h"
#include "emulation/kernels/simd/convolution/pool2d.h"
#include "emulation/kernels/simd/elements/batch_norm.h"
#include "emulation/kernels/simd/elements/elementwise.h"
#include "emulation/kernels/simd/elements/functions.h"
#include "emulation/kernels/simd/elements/optimizer.h"
#include "emulation/kernels/simd/elements/reduce.h"
#include "emulation/kernels/simd/elements/row_norm.h"
#include "emulation/kernels/simd/elements/select.h"
#include "emulation/kernels/simd/elements/whole_array.h"
#include "emulation/kernels/simd/products/gemm.h"
#include "emulation/kernels/simd/products/recurrent.h"
#include "emulation/kernels/simd/rounding/block_quantize.h"
#include "emulation/kernels/simd/rounding/compact.h"
#include "emulation/kernels/simd/rounding/quantize.h"

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
