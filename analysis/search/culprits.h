// Finds the layers that spoil a run if they are low together: delta debugging, several lanes a run.
//
// A set that fails is cut into parts. Each part is run low alone, the rest is not:
//
//   some parts fail     each of them is cut again
//   none fails alone    part 1, parts 1 and 2, ... are run: at the first that fails, its last part
//                       is cut again, with the parts before it low
//
// until parts are single layers. Of layers that spoil the run only together it finds one, which is
// enough to end that. For one culprit among n layers it takes at most two runs of kLanesPerReplay
// lanes for each factor kLanesPerReplay of n. It gives up where many parts fail alone: then the
// format does not suit the network.
// Source: Zeller and Hildebrandt, Simplifying and Isolating Failure-Inducing Input, TSE 28(2), 2002
// (its binary case; here all failing parts are followed).
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

namespace lockstep {

using LayerSet = std::vector<std::string>;

// Whether the run fails, for each of these sets of low layers. Fewer answers than sets: the search
// must end.
using SetsFail = std::function<std::vector<bool>(const std::vector<LayerSet>& low)>;

// The most sets that may fail at a time; if more do, the search gives up.
inline constexpr size_t kMostSuspects = 4;

// Requires: the run with all of `low` fails, that with none of them does not. Returns: the
// culprits, in the order of `low`; empty: it gave up or had to end.
LayerSet find_culprits(const LayerSet& low, const SetsFail& sets_fail);

}  // namespace lockstep
