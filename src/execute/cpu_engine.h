// What of a program do this CPU's low-precision units compute?
// Sums of products under a unit's accumulator and conversions to its format are the unit's;
// everything else falls to the software kernels and is told. Knows nothing of kernels.
#pragma once

#include "src/execute/engine_survey.h"
#include "src/lower/program.h"

namespace lockstep {

EngineSurvey survey_cpu_engine(const Graph& graph, const Program& program);

}  // namespace lockstep
