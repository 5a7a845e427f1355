// Names the line of the user's script that sets something which is not an op: the optimizer and its
// numbers, clipping, a module, a buffer, batches. Knows nothing of limits.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "analysis/pair/run_facts.h"

namespace lockstep {

// Things with a value, as captures name them.
inline constexpr char kTiesLine[] = "tied weights", kSeedLine[] = "seed",
                      kAutocastLine[] = "autocast", kScalerLine[] = "scaler";

class ScriptPlaces {
 public:
  // A capture of an older version has no lines: then nothing is found.
  ScriptPlaces(const RunFacts& before, const RunFacts& after);

  // Of the lines of `after` for this thing, "optimizer eps", the first whose code the baseline does
  // not have, else the first. Without any, that of the thing it is a number of: "optimizer". ""
  // where none is known.
  std::string line_of(const std::string& thing) const;
  // The first of its lines whose code the baseline does not have; "": none, or the baseline has no
  // lines of it.
  std::string changed_line_of(const std::string& thing) const;
  // What has such a line: the module of this path, a parameter or buffer of its own, "tensor
  // attention.mask", its class or that of a module around it, "class Block"; without a layer the
  // function of the step. "": none.
  std::string changed_thing_in(const std::string& layer) const;
  // The line of the value that a site stores or updates, by its node: "storage:b:blocks.0.shift",
  // "optimizer:fc.weight".
  std::string line_of_node(std::string_view node) const;
  // Of a parameter or buffer, "blocks.0.fc.weight": its own, or that of its module.
  std::string line_of_tensor(std::string_view name) const;
  // Of a parameter that has no gradient any more: what froze it, if that is new, else as above.
  std::string line_of_frozen(std::string_view parameter) const;

 private:
  std::map<std::string, std::string> lines_, changed_;  // by thing
  std::map<std::string, std::string> values_;           // by thing, of the run
};

// What a run says of a thing: "head.weight = embed.weight" of "tied weights"; "": nothing.
std::string script_value(const RunFacts& run, std::string_view thing);

}  // namespace lockstep
