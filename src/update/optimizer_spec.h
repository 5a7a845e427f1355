// A run's choice of optimizers and schedules: rows by name, with the numbers given for them. Plain
// data: the rows are in optimizers.h and schedules.h.
#pragma once

#include <string>

#include "src/update/hyper_parameters.h"

namespace lockstep {

using OptimizerSpec = HyperChoice;  // a row of the optimizer table
using ScheduleSpec = HyperChoice;   // a row of the schedule table

// Layers with an optimizer of their own. A parameter belongs to the last group that matches.
struct ParameterGroup {
  std::string layers;  // a glob over layers (or whole parameter names)
  OptimizerSpec optimizer;
};

}  // namespace lockstep
