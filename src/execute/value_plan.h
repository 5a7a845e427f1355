// Plans the memory of the values that a program computes.
// A slot is memory that values use one after the other. A value that nothing reads for many nodes,
// as between its forward and its backward node, rests: its bits go to a smaller slot in fewer
// bytes, and the large one serves others. A cast whose operand is in memory when the cast is needed
// again rests in no bytes: it is rounded again. Values that are copies (a reshape) share one
// memory.
//
//   node      3        4 ... 40        41
//   value     made in  rests in        back in
//             slot A   slot B          slot C
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "emulation/kernels/args/compact_form.h"
#include "src/core/tensor.h"
#include "src/lower/program.h"

namespace lockstep {

// A value rests for at least so many nodes, if it has so many elements. Shorter rests save little
// at the fullest node of a step, and so do smaller values; both cost two passes over the value.
inline constexpr int kLeastRestNodes = 16;
inline constexpr int64_t kLeastRestElements = 4096;

struct ValuePlan {
  struct Rest {
    int value;
    int begins, ends;  // the nodes before which it leaves its slot, and gets the next one
    CompactForm form = {};
    int compact_slot = -1;
    int operand = -1;    // of the cast that is done again; -1: `form` is in compact_slot
    int next_slot = -1;  // of the value after its rest
  };
  std::vector<int64_t> slots;    // the bytes of each
  std::vector<int> slot_of;      // by program value: the one it is made in; -1: external, or a copy
  std::vector<int> original_of;  // by program value: whose memory it shares as a copy; -1: its own
  std::vector<Rest> rests;       // at most one per value; copies rest with their original

  int64_t bytes() const;  // of all slots
  // The value in whose memory `value` is: itself, or the one that it copies.
  int memory_of(int value) const {
    const int original = original_of[static_cast<size_t>(value)];
    return original < 0 ? value : original;
  }
};

struct PlanRules {
  Container container = Container::kF32;
  std::vector<int> zeros_and_ones = {};  // program values of integers that are read only as masks
  // Program values: the second holds the elements of the first in the same order, and neither
  // changes. In the order in which they are made.
  std::vector<std::pair<int, int>> copies = {};
  // Program values: the second is the first, rounded, and can be made again.
  std::vector<std::pair<int, int>> casts = {};
  int readers_lag = 0;   // other lanes read a value as many nodes later than this one does
  bool may_rest = true;  // false: values may be changed to numbers that their formats do not hold
  std::vector<bool> left_out = {};  // by node, those that never run; empty: all run
};
ValuePlan plan_values(const Program& program, const PlanRules& rules);

}  // namespace lockstep
