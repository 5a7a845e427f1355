// What every writer of a policy reads.
#pragma once

#include <string>

#include "src/graph/ir.h"
#include "src/policy/policy.h"

namespace lockstep {

struct EmitFacts {
  Policy policy;
  Graph graph;           // of the model, with the layers that rules may name
  std::string model;     // for the first lines
  std::string evidence;  // what the policy rests on; "": nothing was run
  bool trains = true;    // false: inference
};

}  // namespace lockstep
