// [scaling] of a policy as a recipe of Transformer Engine.
// Never run by us: written from its source.
// Source: Transformer Engine 2.20: transformer_engine/common/recipe/__init__.py (the recipes),
// transformer_engine/pytorch/quantization.py (QuantizerRole, DelayedScalingRequest),
// transformer_engine/pytorch/tensor/*.py and custom_recipes/quantizer_factories.py (quantizers).
#pragma once

#include <optional>

#include "reports/pytorch/pytorch_factors.h"
#include "reports/pytorch/pytorch_words.h"
#include "src/policy/factor_scaling.h"

namespace lockstep {

// fast: which FP8 products are summed in 14 bits on Hopper. Absent: it has no quantizers that
// round so.
std::optional<LibraryCall> transformer_engine_call(const FactorScaling& scaling,
                                                   const FastSums& fast);

}  // namespace lockstep
