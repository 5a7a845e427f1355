// The values of a step that the user watches: the outputs of modules, and tensors that the step
// names. A run compares them with the reference's in every step, in their own unit: people who
// fine-tune look at log-probabilities, not at the loss.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/graph/ir.h"

namespace lockstep {

// Graph::outputs with these prefixes are tensors that the step named; those with the second hold
// log-probabilities. A pattern of find_watched() may have the second prefix, too.
inline constexpr std::string_view kWatchPrefix = "watch/", kLogProbsPrefix = "log_probs/";

// More would fill reports with what nobody reads.
inline constexpr size_t kMostWatched = 64;

struct WatchedValue {
  struct Place {
    int node = -1;  // its index; -1: this graph does not compute the value
    std::string value = {};
  };
  std::string name;
  bool log_probs = false;
  std::vector<Place> places;  // by graph
};

// `graphs`: the step on batches of every shape and path. Watches what the step names and what the
// patterns find: each is a glob over module paths, or the id of a node. The output of a module is
// the last value computed in it that something outside of it reads; if it is called several times,
// that of the last call.
// Throws: InputError with all patterns that find nothing, and the nearest names.
std::vector<WatchedValue> find_watched(std::span<const Graph* const> graphs,
                                       const std::vector<std::string>& patterns);

}  // namespace lockstep
