// A baseline: what a run was when it was accepted, in a small JSON file next to the code
// (docs/check.md). It holds the run's identity, the bands of its metrics over an ensemble of
// equally good runs, and how it was made. No histograms, no tensors, and of single steps only a
// hash each.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "analysis/check/ensemble.h"
#include "analysis/pair/model_identity.h"

namespace lockstep {

inline constexpr int kBaselineVersion = 1;
inline constexpr std::string_view kBaselineFormat = "lockstep-baseline";

// One acceptance: the first is the recording.
struct BaselineEntry {
  std::string created_utc, lockstep_version, reason;
  std::string keys;  // the metrics it changed, a glob over "LANE/METRIC/LABEL"; "*": all
};

struct Baseline {
  std::string path;
  std::string proposed_for;            // of a proposal: text_hash() of the baseline that it changes
  std::vector<BaselineEntry> history;  // the oldest first
  std::map<std::string, std::string> environment;
  std::string options_json;  // of the recorded run: how to repeat it
  std::map<std::string, std::string> policy_texts;
  ModelIdentity identity;  // without twins, its lanes as below
  int64_t steps = 0;
  std::array<Ensemble, 2> ensembles;                // by Draw
  std::vector<std::vector<std::string>> findings;   // by lane: kinds in any of the runs
  std::vector<std::vector<std::string>> step_bits;  // by lane and step
  const Ensemble& ensemble(Draw draw) const { return ensembles[static_cast<size_t>(draw)]; }
};

// `runs`: of the same options but for nudges (`ulps`) or seeds (`seeds`); the first of `ulps` is
// the run itself. Requires: the same lanes in all.
Baseline make_baseline(const RunFile& run, std::span<const RunSummary> ulps,
                       std::span<const RunSummary> seeds);

// Throws: InputError: not a baseline, of a newer version, damaged (with the place).
Baseline baseline_from_json(const std::string& text, const std::string& path);
std::string to_json(const Baseline& baseline);
// The hash of a baseline file's text, as 16 hexadecimal digits.
std::string text_hash(const std::string& text);

// "conv1 conv2d grad_weight output", "parameter fc.weight", "parameter group 0"; "": the lane.
std::string subject_text(const ModelIdentity& identity, const Metric& metric, size_t subject);

}  // namespace lockstep
