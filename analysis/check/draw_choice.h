// Is a run drawn like its baseline: the same weights, but for an ulp, batches and masks?
#pragma once

#include <span>
#include <string>

#include "analysis/check/ensemble.h"
#include "analysis/check/joined_parameters.h"
#include "analysis/check/judged_run.h"

namespace lockstep {

struct DrawChoice {
  Draw draw = Draw::kSame;
  std::string why = {};            // of another draw: "the weights of fc1 (net.py:7) differ at ..."
  bool has_other_weights = false;  // and the baseline's batches
};
DrawChoice choose_draw(const JudgedRun& run, std::span<const JoinedParameter> joined);

}  // namespace lockstep
