// Where does a program keep what it computes?
// A slot is memory that values use one after the other. A value that nothing reads for many nodes,
// as between its forward and its backward node, rests: its bits go to a smaller slot in fewer
// bytes, and the large one serves others.
//
//   node      3        4 ... 40        41
//   value     made in  rests in        back in
//             slot A   slot B          slot C
#pragma once

#include <cstdint>
#include <vector>

#include "emulation/kernels/compact.h"
#include "src/core/tensor.h"
#include "src/lower/program.h"

namespace lockstep {

// A value rests if nothing reads it for at least so many nodes, and if it has so many elements.
inline constexpr int kLeastRest = 16;
inline constexpr int64_t kLeastResting = 4096;

struct ValuePlan {
  struct Rest {
    int value;
    CompactForm form;
    int begins, ends;    // the nodes before which it leaves its slot, and gets the next one
    int resting = -1;    // the slot of its compact form
    int next_slot = -1;  // the one after
  };
  std::vector<int64_t> slots;  // the bytes of each
  std::vector<int> slot_of;    // by program value: the one it is made in; -1: external
  std::vector<Rest> rests;     // at most one per value

  int64_t bytes() const;  // of all slots
};

// `zeros_and_ones`: program values of integers that are read only as masks.
// `readers_lag`: other lanes read a value as many nodes later than this one does.
ValuePlan plan_values(const Program& program, Container container,
                      const std::vector<int>& zeros_and_ones, int readers_lag);

}  // namespace lockstep
