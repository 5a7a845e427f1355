// What does a step ask of tensor cores and of memory?
// Facts that no run is needed for: the extents of every sum of products, which of them tensor cores
// cannot use whole, its arithmetic and traffic, and what a lane keeps in memory. For advice:
// nothing here changes a number of any lane.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "src/graph/op.h"
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
  // Which of m, n and k are no multiple of kAlignment16Bit, kAlignmentFp8: e.g. "n", "mk". Of a
  // convolution, whose pixels and taps its kernels pad freely: "c", "o", its input and output
  // channels per group.
  std::string unaligned_16bit, unaligned_fp8;
  int64_t multiply_adds;
  int64_t elements;  // of A, B and C together: each is read or written at least once
  int64_t bytes(int bits) const { return elements * bits / 8; }  // of memory traffic at least
};

// Every product of the step graph, in execution order.
std::vector<ProductFact> product_facts(const Graph& step);

// What a lane keeps, in bytes of its formats (Lockstep's own containers are wider): the recipe's
// cost on hardware. Masks count 1 byte an element, indices 8, as frameworks keep them. Copies that
// only widen (FP16 to FP32 before a loss) are not counted: frameworks make some of them.
struct MemoryFacts {
  int64_t weights = 0, master_weights = 0, gradients = 0, optimizer_state = 0;
  int64_t kahan_terms = 0;  // the compensations of update_rounding "kahan"
  int64_t activations = 0;  // made in the forward pass, read in the backward pass, casts included
  bool operator==(const MemoryFacts&) const = default;
};
// `state_count`: state tensors of a parameter.
MemoryFacts memory_facts(const Graph& step, const Program& program, const Policy& policy,
                         const std::function<int(const Parameter&)>& state_count);

// The facts as JSON, one product per line: what the run file keeps.
std::string to_json(const std::vector<ProductFact>& facts);
std::string to_json(const MemoryFacts& facts);
MemoryFacts memory_facts_from_json(std::string_view json);  // Throws: nlohmann's exceptions

}  // namespace lockstep
