// Where the user's script makes or sets what no node of the graph has: the optimizer and its
// numbers, clipping, modules, buffers, batches. Captures, run files and baselines hold the same
// JSON (docs/capture-file.md, /lines).
#pragma once

#include <string>
#include <vector>

namespace lockstep {

struct ScriptLine {
  std::string of = {};     // "optimizer eps", "module blocks.0.norm", "tensor blocks.0.shift"
  std::string at = {};     // "train.py:57"; "": unknown, or nothing in the script sets it
  std::string hash = {};   // of the syntax there: equal for equal code; "": not recorded
  std::string value = {};  // of a few: "head.weight = embed.weight"; "": not recorded
};
// Several lines of one thing are in the order in which they are to be named.
using ScriptLines = std::vector<ScriptLine>;

// Things whose value a replay knows from the batches: how many differ ("1 of 8"), a hash of all
// masks in the order in which they were drawn, and one of each input, "input batch[0]".
inline constexpr char kBatchesLine[] = "batches", kMasksLine[] = "masks", kInputLine[] = "input ";

// Whether both have the same masks, and inputs in common, none of which differ. A graph may read
// other inputs after a rewrite: labels that reach it through an index are none.
bool have_same_draws(const ScriptLines& before, const ScriptLines& after);

std::string to_json(const ScriptLines& lines);
// Throws: InputError for anything that to_json or a capture does not write.
ScriptLines script_lines_from_json(const std::string& text);

}  // namespace lockstep
