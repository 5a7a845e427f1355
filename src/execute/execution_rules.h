// How is a lane's program executed, in all its steps? Plain data.
#pragma once

#include "emulation/kernels/active_kernels.h"
#include "src/core/tensor.h"

namespace lockstep {

struct ExecutionRules {
  Container container = Container::kF32;           // kF64 for the truth lane
  const KernelSet& (*kernels)() = active_kernels;  // the engine's, in use at the time of the call
  // How many nodes the executor may be ahead of those that measure their errors against it.
  int readers_lag = 0;
  // No value rests or shares its memory (value_plan.h), which ValueStore::mutable_of() requires: it
  // may write numbers that the value's format does not hold.
  bool in_place = false;
  bool forward_only = false;  // backward nodes never run, so no value waits for one
  // The lane chooses by its own values where a capture allows it (the decision op's attribute
  // `own`); otherwise it follows what was recorded.
  bool decides_itself = false;
};

}  // namespace lockstep
