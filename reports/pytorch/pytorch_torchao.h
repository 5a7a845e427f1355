// [scaling] of a policy as a configuration of torchao.
// Source: torchao 0.18.0: torchao/float8/config.py, torchao/float8/float8_linear.py,
// torchao/prototype/moe_training/config.py and mxfp8_linear.py, and
// torchao/prototype/moe_training/nvfp4_training/nvfp4_training.py.
#pragma once

#include <optional>

#include "reports/pytorch/pytorch_factors.h"
#include "reports/pytorch/pytorch_words.h"
#include "src/policy/factor_scaling.h"

namespace lockstep {

// fast: which FP8 products are summed in 14 bits on Hopper. Absent: torchao has none that rounds
// so.
std::optional<LibraryCall> torchao_call(const FactorScaling& scaling, const FastSums& fast);

}  // namespace lockstep
