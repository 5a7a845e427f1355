// Lists the operations of a program that the `cuda` engine computes itself: the products of tensor
// cores.
#pragma once

#include "src/execute/engine_survey.h"
#include "src/graph/ir.h"
#include "src/lower/program.h"

namespace lockstep {

EngineSurvey survey_cuda_engine(const Graph& graph, const Program& program);

}  // namespace lockstep
