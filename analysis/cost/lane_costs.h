// What each lane's policy would cost on a GPU: an estimate of the step's time by roofline
// (analysis/cost/gpu_cost.h), the memory of its formats, and the products that do not fill the
// tensor cores' tiles.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "analysis/cost/gpu_cost.h"
#include "src/record/run/run_reader.h"

namespace lockstep {

struct LaneCost {
  int lane = 0;
  double relative_time = 0;           // of the reference's
  std::optional<MemoryFacts> memory;  // absent from files of version 1
};
// A product of 16-bit factors whose extents are not multiples of kAlignment16Bit.
struct UnalignedProduct {
  std::string layer, op, extents;  // "n is 10"
};
struct CostView {
  std::string gpu;
  std::vector<LaneCost> lanes;  // the reference first; no twins, no captured run
  std::vector<UnalignedProduct> unaligned;
  size_t products = 0;
};

// On `gpu`. Requires: nothing of the run but its graph and its lanes' policies.
CostView read_costs(const RunFile& run, const Gpu& gpu);

}  // namespace lockstep
