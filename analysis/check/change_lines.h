// What changed from a baseline to a run, in words: settings, layers, ops, shapes, parameters,
// lanes.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "analysis/pair/run_match.h"

namespace lockstep {

// A number of the loop or of an op that is not the baseline's: as good as it may be, not what was
// accepted.
struct SettingChange {
  std::string text;                    // "layer_norm eps: 1e-05 -> 1e-06 in 12 layers (ln1, ...)"
  std::string layer, op, source_line;  // the first; "": of the loop
  // Why weights, batches or masks are others: weights tied or not, a batch that repeats, an op that
  // drops elements.
  bool changes_draw = false;
};

// One line each.
struct ChangeLines {
  std::vector<std::string> changes;     // "layer_norm eps: 1e-05 -> 1e-06 in 12 layers"
  std::vector<SettingChange> settings;  // those of `changes` that are numbers of the loop or of ops
  std::vector<std::string> no_match;    // what the baseline has and the run lacks
  std::vector<std::string> extra;       // what only the run has
  bool changes_casts = false;           // the model casts to another narrow format, or elsewhere
};
// "the run has no parameter fc.weight (10x84)".
std::string no_parameter_text(std::string_view which, const ParameterFacts& parameter);
ChangeLines change_lines(const RunFacts& baseline, const RunFacts& run, const RunMatch& match);

// The differences in setup_in_words: what is trained and how, not what its weights and batches were
// drawn from, which a baseline's limits allow for. "": one side has no such setting.
std::vector<SetupDifference> settings_of_loop(const RunFacts& baseline, const RunFacts& run);

}  // namespace lockstep
