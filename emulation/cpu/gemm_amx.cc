// Matrix products on the CPU's own AMX tiles.
#include "emulation/cpu/gemm.h"
#include "emulation/cpu/gemm_amx_tile.h"

namespace lockstep {

void amx_gemm(const GemmArgs<float>& args) {
  amx_gemm_on<HardwareTiles>(args);
}

}  // namespace lockstep
