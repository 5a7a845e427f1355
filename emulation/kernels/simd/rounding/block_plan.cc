// The tables of a plan, all computed from the definition.
#include "emulation/kernels/simd/rounding/block_plan.h"

namespace lockstep {

BlockPlan::BlockPlan(const BlockQuantizeSpec& spec, float tensor_scale)
    : element({.format = spec.format->element, .rounding = spec.rounding, .key = spec.key}),
      plain(element.path == RoundPath::kMagic &&
            spec.format->element->overflow == OverflowRule::kSaturate),
      code_of{.is_e4m3 = spec.format->scale == ScaleFormat::kE4m3,
              .addend = scale_rule_addend<uint32_t>(*spec.format),
              .emax = spec.format->element->emax,
              .element_max = static_cast<float>(spec.format->element->max_finite),
              .tensor_scale = tensor_scale} {
  for (size_t code = 0; code < scale.size(); ++code) {
    scale[code] = block_scale(static_cast<uint8_t>(code), tensor_scale, *spec.format);
    inverse[code] = 1 / scale[code];  // exact for powers of two
  }
}

}  // namespace lockstep
