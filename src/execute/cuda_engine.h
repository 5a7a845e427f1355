// The `cuda` engine's part in the table of engines.
#pragma once

#include <string>

#include "emulation/accumulator/accumulator.h"
#include "src/execute/engine_survey.h"
#include "src/graph/ir.h"
#include "src/lower/program.h"

namespace lockstep {

// Why there is no GPU to compute on, or "".
std::string why_no_gpu();
// Requires: there is one.
const Hardware* gpu_hardware();
const Hardware* played_hardware();

// Products of tensor cores run on the device; all else is listed as running in software.
EngineSurvey survey_cuda_engine(const Graph& graph, const Program& program);

}  // namespace lockstep
