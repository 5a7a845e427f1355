// What may be wrong with a capture file?
// Each function does one thing to it that a random number chooses; equal numbers, equal damage.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "src/graph/ir.h"
#include "src/record/capture/capture_tree.h"

namespace lockstep::testing {

class Dice {
 public:
  explicit Dice(uint64_t seed) : engine_(seed) {}
  uint64_t below(uint64_t count) { return count == 0 ? 0 : engine_() % count; }
  bool one_in(uint64_t count) { return below(count) == 0; }
  template <typename List>
  auto& pick(List& list) {
    return list[below(list.size())];
  }

 private:
  std::mt19937_64 engine_;  // the same numbers everywhere
};

// Flips, truncations and splices of any bytes. Never gives back what it got.
std::string damaged_bytes(const std::string& bytes, Dice& dice);
// A group, dataset or attribute is dropped, renamed, doubled, moved, retyped, reshaped or
// scrambled; returns in words what was done.
std::string damage_tree(CaptureNode& tree, Dice& dice);
// The JSON of graph 0: its fields, numbers, ids, ops and shapes, or its letters.
std::string damage_graph(CaptureNode& tree, Dice& dice);
// Ops, attributes and operands exchanged at random, and every shape inferred anew: a graph that no
// rule forbids and nobody would write. Its tensors stay small.
Graph odd_graph(Graph graph, Dice& dice);
// What only HDF5 can say: links of every kind, cycles, types, layouts, huge extents, names.
std::string damage_hdf5(const std::string& path, Dice& dice);

}  // namespace lockstep::testing
