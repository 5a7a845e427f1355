// What is known of a run before its first step: lanes, step graph and sites, as plain data.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "src/capture/script_line.h"
#include "src/graph/ir.h"
#include "src/graph/site.h"
#include "src/lower/layer_facts.h"
#include "src/policy/policy.h"
#include "src/train/run_options.h"

namespace lockstep {

// Ends a warning about a policy that asks for what a part of the model lacks; another may have it.
inline constexpr std::string_view kInThisPart = " (in this part of the model)";

struct LaneDescription {
  std::string name;  // as given on the command line
  Policy policy;
  std::string engine;  // "software"
  std::string target;  // "" or the text after '@'
  bool is_reference = false;
  std::vector<std::string> fallbacks;  // kernels that the engine lacked
  MemoryFacts memory;                  // what the recipe keeps in memory on hardware
  std::vector<std::string> warnings;   // numbers of the run that its formats cannot hold
  // By site id: the format that values are rounded to there; "": the lane lacks the site.
  std::vector<std::string> site_formats;
  // By site id: the sums that the engine's device forms there (EngineSurvey); empty: no device.
  std::vector<std::string> device_sums;
  // The losses that have a scaler each, in the scalers' order; empty: one scaler for all.
  std::vector<std::string> scaler_losses;
};

// The tensors of all lanes in this machine's memory, without data, statistics, kernels' scratch,
// and the rounding errors that a step with sampled sums keeps (RoundingErrors).
struct ProcessMemory {
  // Kept between steps: weights, masters, optimizer states, gradients that are added up, buffers,
  // updates.
  int64_t state_bytes = 0;
  int64_t gradient_bytes = 0;  // a step's gradients of parameters
  int64_t value_bytes = 0;     // what else a step computes
  int64_t bytes() const { return state_bytes + gradient_bytes + value_bytes; }
};

// Constant over the run.
struct RunDescription {
  const Graph* step_graph = nullptr;
  const SiteTable* sites = nullptr;
  const RunOptions* options = nullptr;
  std::vector<LaneDescription> lanes;  // the reference first
  ProcessMemory memory;
  std::string memory_warning;  // where it is nearly more than was free; "": it is not
  std::string data;            // DataSet::describe()
  // A hash of a capture's batches and masks, 16 hexadecimal digits; empty: batches are drawn by the
  // seed.
  std::string batches_hash;
  ScriptLines lines;                 // of a capture
  std::vector<std::string> watched;  // the names of the values that are watched
};

}  // namespace lockstep
