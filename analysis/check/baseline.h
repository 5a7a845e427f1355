// A baseline: what a run was when somebody accepted it, in a small JSON file that lives next to the
// code (docs/check.md). It holds what the run was, the bands of its metrics over an ensemble of
// equally good runs, and how it came about. No histograms, no tensors, no numbers of single steps
// but a hash of each.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "analysis/check/ensemble.h"
#include "analysis/pair/run_facts.h"

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
  std::map<std::string, std::string> policy_texts;
  RunFacts run;                       // without twins, its lanes as below; its options repeat it
  std::array<Ensemble, 2> ensembles;  // by Draw
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
std::string to_json(const Baseline& baseline);  // sealed (sealed_text.h)
// The hash of a baseline file's text, as 16 hexadecimal digits.
std::string text_hash(const std::string& text);

// "conv1 conv2d grad_weight output", "parameter fc.weight", "parameter group 0"; "": the lane.
std::string subject_text(const RunFacts& run, const Metric& metric, size_t subject);

}  // namespace lockstep
