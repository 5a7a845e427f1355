// Finds the first element of a tensor that differs between two runs, and by how much.
// A run file holds the hash of every tensor, not the tensor. Replaying a run up to the step in
// question gives its values back: the same bits, which the hash proves.
#pragma once

#include <atomic>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "analysis/exact/exact_result.h"
#include "emulation/format/format.h"
#include "src/core/tensor.h"
#include "src/record/run/run_reader.h"

namespace lockstep {

// The values of one site in one step of one lane: a tensor for every pass of the step.
struct SiteValues {
  std::vector<Tensor> passes;
  const Format* format = nullptr;
  bool is_recorded = true;  // their hash is the run file's; false: another program wrote it
};

// Replays the run with this program. Throws: InputError: the run cannot be replayed, or has no such
// value; its words say why.
SiteValues replay_site(const RunFile& run, const SitePlace& place, const std::atomic<bool>& stop);

// The first element with other bits. Nothing: all are equal. Throws: InputError: other shapes.
std::optional<FirstValue> compare_values(const SiteValues& run, const SiteValues& baseline);

// How another program replays a side whose bits this one does not give.
using ReplayElsewhere = std::function<std::vector<Tensor>(const RunFile&, const SitePlace&)>;

// Completes the first difference of a comparison: sets result.first_value, or
// result.no_first_value to the reason why not. `run_elsewhere`, `baseline_elsewhere`: may be empty.
void find_first_value(ExactResult& result, const RunFile& run, const RunFile& baseline,
                      const std::atomic<bool>& stop, const ReplayElsewhere& run_elsewhere = {},
                      const ReplayElsewhere& baseline_elsewhere = {});

}  // namespace lockstep
