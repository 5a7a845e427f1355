// What a new baseline changes, and the merge of it into the old one, key by key.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "analysis/check/baseline.h"

namespace lockstep {

// A metric whose band is not the old one's.
struct KeyChange {
  std::string key;  // "fp32/magnitude/conv1 conv2d activation output"
  MetricId metric = MetricId::kMagnitude;
  Draw draw = Draw::kSame;
  double before = 0, after = 0;  // centres; NaN: one of them lacks it
  // The centre lies beyond the old limits at `alpha`.
  bool is_beyond = false;
};
struct BaselineDiff {
  std::vector<std::string> changes;  // of model, loop and lanes: ChangeLines::changes
  std::vector<KeyChange> keys;       // that lie beyond the old limits, or that one of them lacks
  size_t compared = 0;
  bool same_keys = true;  // the same sites, parameters and lanes
};
BaselineDiff compare_baselines(const Baseline& before, const Baseline& after, double alpha);

// `before` with the bands of `proposed` whose keys match the glob, and one more line of history.
// With "*", the proposal as a whole.
// Throws: InputError: no reason; the glob matches nothing; keys of other sites, which need "*".
Baseline approve(const Baseline& before, const Baseline& proposed, std::string_view keys,
                 std::string reason, std::string version);

// The reference lane stopped or has no finite loss: nothing can be judged by it. "": it has not.
std::string why_reference_broke(const RunSummary& run);

// Why the run must not be accepted as good: lanes that died or hold NaN, findings that the baseline
// does not have. Empty: nothing.
std::vector<std::string> why_no_baseline(const Baseline& before, const RunSummary& run);

}  // namespace lockstep
