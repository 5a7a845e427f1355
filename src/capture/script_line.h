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

// Things whose value a replay knows from the batches: how many differ ("1 of 8"), and a hash of
// batches and masks in the order in which they were drawn.
inline constexpr char kBatchesLine[] = "batches", kDrawsLine[] = "draws";

std::string to_json(const ScriptLines& lines);
// Throws: InputError for anything that to_json or a capture does not write.
ScriptLines script_lines_from_json(const std::string& text);

}  // namespace lockstep
