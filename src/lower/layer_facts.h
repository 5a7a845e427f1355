// What a step needs of tensor cores and memory.
// Facts that need no run: the extents of every sum of products, those that do not fill tensor
// cores, its arithmetic and traffic, and a lane's memory. For advice only: nothing here changes a
// number of any lane.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "src/graph/op.h"
#include "src/graph/site.h"
#include "src/lower/program.h"
#include "src/policy/policy.h"

namespace lockstep {

// Extents that are multiples of these fill a tensor core's tiles with 16-byte rows: 8 numbers of 16
// bits, 16 of FP8. Source: NVIDIA, "Matrix multiplication background user's guide", section 3.
inline constexpr int64_t kAlignment16Bit = 8, kAlignmentFp8 = 16;

struct ProductFact {
  std::string node, layer, op;
  bool backward;
  ProductShape shape;
  // Which of m, n and k are not multiples of kAlignment16Bit, kAlignmentFp8: e.g. "n", "mk". For a
  // convolution, whose kernels pad pixels and taps freely: "c" and "o", its input and output
  // channels per group.
  std::string unaligned_16bit, unaligned_fp8;
  int64_t multiply_adds;
  int64_t elements;  // of A, B and C together, each read or written at least once
  int64_t bytes(int bits) const { return elements * bits / 8; }  // lower bound of memory traffic
};

// Every product of the step graph, in execution order.
std::vector<ProductFact> product_facts(const Graph& step);

// The memory of a lane in bytes of its formats (Lockstep's own containers are wider): the recipe's
// cost on hardware. Masks count 1 byte per element and indices 8, as in frameworks. Copies that
// only widen (FP16 to FP32 before a loss) are not counted, though frameworks make some of them.
struct MemoryFacts {
  int64_t weights = 0, master_weights = 0, gradients = 0, optimizer_state = 0;
  int64_t kahan_terms = 0;  // the compensations of update_rounding "kahan"
  int64_t activations = 0;  // made in the forward pass, read in the backward pass, casts included
  bool operator==(const MemoryFacts&) const = default;
};
MemoryFacts memory_facts(const Graph& step, const Program& program, const Policy& policy,
                         const StateShapes& optimizer_states);

// The facts as JSON, one product per line, as in the run file.
std::string to_json(const std::vector<ProductFact>& facts);
std::string to_json(const MemoryFacts& facts);
MemoryFacts memory_facts_from_json(std::string_view json);  // Throws: InputError

}  // namespace lockstep
