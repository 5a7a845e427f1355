// The scalar set: plain loops, the definition of every result.
#pragma once

#include "emulation/kernels/kernel_set.h"

namespace lockstep {

const KernelSet& scalar_kernels();

}  // namespace lockstep
