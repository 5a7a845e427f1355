// Lists the sums of a program that run on the CPU although software lanes were given a device.
#pragma once

#include "src/execute/engine_survey.h"
#include "src/lower/program.h"

namespace lockstep {

// Nothing unless a device was chosen (select_software_device). Everything but sums of products runs
// on the CPU anyway and is not listed.
EngineSurvey survey_software_engine(const Graph& graph, const Program& program);

}  // namespace lockstep
