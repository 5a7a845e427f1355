// Lists the operations of a program that run on this CPU's low-precision units.
// Sums of products with a unit's accumulator and conversions to its format run on the unit. All
// other operations run on the software kernels; the survey lists them. Knows nothing of kernels.
#pragma once

#include "src/execute/engine_survey.h"
#include "src/lower/program.h"

namespace lockstep {

EngineSurvey survey_cpu_engine(const Graph& graph, const Program& program);

}  // namespace lockstep
