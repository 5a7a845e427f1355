// Fused or split parameters of a judged run (joined_parameters.h): which are one, and what their
// gradients are together.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "analysis/check/check_result.h"
#include "analysis/check/joined_parameters.h"
#include "analysis/check/judged_run.h"

namespace lockstep {

// The weights of two runs of one draw differ by an ulp, 2^-23 of each; their norms by less.
inline constexpr double kSameDrawOctaves = 0x1p-20;

// By the values at the start. None, if the baseline has no ensemble of one draw.
std::vector<JoinedParameter> find_joined(const JudgedRun& run);
// They are named as changed, and are no longer missing.
void name_joined(const JudgedRun& run, std::span<const JoinedParameter> joined,
                 CheckResult& result);
// Whether both sides have parameters that the other lacks.
bool is_replaced(const JudgedRun& run, std::span<const JoinedParameter> joined);

// The norm of the first gradient, in octaves, of all parts together.
struct JoinedGradient {
  size_t lane, parameter;  // of the baseline: the first part
  Band before;
  Measured now;
};
std::vector<JoinedGradient> joined_gradients(const JudgedRun& run,
                                             std::span<const JoinedParameter> joined,
                                             const Ensemble& ensemble);

}  // namespace lockstep
