// Matrix products on the CPU's own AMX tiles.
#include "emulation/kernels/cpu/gemm.h"
#include "emulation/kernels/cpu/gemm_amx_tile.h"

namespace lockstep {

void amx_gemm(const GemmArgs<float>& args) {
  amx_gemm_on<HardwareTiles>(args);
}

}  // namespace lockstep
