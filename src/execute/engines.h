// The engines that compute lanes.
// One row per engine: its kernels, and the operations it computes itself. A target that this build
// or this machine cannot serve is rejected, never emulated silently.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "emulation/kernels/active_kernels.h"
#include "emulation/kernels/kernel_set.h"
#include "src/execute/engine_survey.h"
#include "src/lower/program.h"

namespace lockstep {

struct Engine {
  std::string_view name, help;
  const KernelSet& (*kernels)() = software_engine_kernels;
  // The accumulators and conversions of its lanes; null: the policy's own.
  const Hardware* (*hardware)() = nullptr;
  // Null: it computes every program.
  EngineSurvey (*survey)(const Graph& graph, const Program& program) = nullptr;
  // Why it computes nothing here, "" if it does; null: it always does.
  std::string (*why_not)() = nullptr;
  // A library picks its products' algorithms, within the policy's table [cuda].
  bool has_library = false;
};
std::span<const Engine> engines();

// The engine of a lane's target: "" is software, and so is the name of hardware whose accumulators
// the lane uses (emulation/accumulator/accumulator.h).
// Throws: InputError: a target this build does not serve, or an unknown one (did-you-mean).
const Engine& find_engine(std::string_view target);

}  // namespace lockstep
