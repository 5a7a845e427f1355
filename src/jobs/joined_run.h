// The run files of parts as one run: each part is a group of layers under the path of its module,
// each batch (a step that a rank captured) is a step. The step graph has a backward pass for each
// part, whose loss is named like the part.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "src/record/run/run_reader.h"
#include "src/train/observer.h"

namespace lockstep {

// Ends the name of a part that would be counted twice in a sum over the parts.
inline constexpr std::string_view kAlone = " (alone)";
// The path of its module, from a part's name in the joined run.
std::string module_of_part(std::string_view name);

struct PartRun {
  std::string module;              // its path in the model
  std::string batch;               // "step 3 rank 1"
  std::vector<std::string> paths;  // of its run files, each with the reference and other lanes
};

class JoinedRun {
 public:
  // Runs of one module are batches of one part if their step graphs are equal; of others the later
  // ones are named "experts.2@step 3 rank 1". A part that another contains, or that contains one
  // before it, is named "blocks.0.mlp (alone)". Parts in one batch share a step of the run.
  // Reads the files one after the other. Requires: equal lanes, at least one run.
  // Throws: InputError: a file cannot be read, or a part has other lanes than the first.
  explicit JoinedRun(std::vector<PartRun> runs);
  ~JoinedRun();

  // `model`: what was replayed; `hash`: of all captures.
  const RunDescription& describe(std::string model, std::string hash);
  // Tells the observer the run: start, steps, end. A part that lacks a batch, or whose lane died,
  // has no statistics in that step, and its loss is NaN. A loss is the sum over the parts that have
  // one, of all micro-batches. Cost: memory of one step of all parts. Requires: describe().
  void tell(Observer& observer) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep
