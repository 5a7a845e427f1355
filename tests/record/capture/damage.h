// Damages a capture file. Each function does one thing to it that a random number chooses; equal
// numbers give equal damage.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "src/graph/ir.h"
#include "src/record/hdf5/stored_tree.h"

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

// Flips, truncates and splices any bytes. Never returns its input unchanged.
std::string damaged_bytes(const std::string& bytes, Dice& dice);
// Drops, renames, doubles, moves, retypes, reshapes or scrambles a group, dataset or attribute;
// returns the damage in words.
std::string damage_tree(StoredNode& tree, Dice& dice);
// Damages the JSON of graph 0: its fields, numbers, ids, ops and shapes, or its letters.
std::string damage_graph(StoredNode& tree, Dice& dice);
// Exchanges ops, attributes and operands at random and infers every shape anew: a graph that breaks
// no rule but is absurd. Its tensors stay small.
Graph odd_graph(Graph graph, Dice& dice);
// Damage that only HDF5 can express: links of every kind, cycles, types, layouts, extents, names.
std::string damage_hdf5(const std::string& path, Dice& dice);

}  // namespace lockstep::testing
