// What a lane executes.
// A program is a straight list of instructions with every cast explicit and every decision made.
// Plain data: lower.h makes it, src/execute runs it.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "emulation/accumulator/accumulator.h"
#include "emulation/kernels/flash_kernel.h"
#include "src/graph/ir.h"
#include "src/lower/scaled_cast.h"
#include "src/policy/factor_scaling.h"

namespace lockstep {

// A value of the program: a graph value in one format.
struct ProgramValue {
  std::string graph_value;  // id in the step graph
  TensorType type;
  const Format* format;  // null for integers
  // The one of Program::scaled_casts that made it: it holds the scaled numbers; -1: not scaled.
  int scaled_cast = -1;
};

// The rounding of one output of an op, or of a cast's result.
struct ValueRounding {
  const Format* format = nullptr;  // null: integer, nothing to do
  Rounding rounding = Rounding::kNearestEven;
  std::vector<int32_t> sites;  // that hold its statistics; the first keys stochastic rounding
  // The key if no site is measured: ~site for the cast in front of that site's scaled cast.
  int32_t unmeasured_key = 0;
  uint32_t key() const {
    return static_cast<uint32_t>(sites.empty() ? unmeasured_key : sites.front());
  }
};

enum class InstructionKind : uint8_t {
  kCast,     // inputs[0], times a factor, rounded into outputs[0]
  kOp,       // runs the node, then rounds each output in place
  kObserve,  // statistics of inputs[0] unchanged, for operand sites that no cast feeds
};

struct Instruction {
  InstructionKind kind;
  int node = 0;                          // its index into Graph::nodes
  std::vector<int> inputs, outputs;      // program values
  std::vector<ValueRounding> roundings;  // one per output; kObserve: one, format of the value
  const Accumulator* gemm_accumulator = nullptr;  // kOp: both set on every op
  const Accumulator* reduce_accumulator = nullptr;
  // kOp with sums of products: the formats in which the accumulator reads the inputs, by index;
  // null for inputs that are not factors.
  std::vector<const Format*> factor_formats = {};
  std::vector<const Format*> inner_formats = {};  // kOp: see OpCall
  float factor = 1;  // kCast: a power of two that multiplies before the rounding
  // kCast: one of Program::scaled_casts, or -1. An op that reads such values has their scales
  // divided out of its sums of products.
  int scaled_cast = -1;
  // kOp: the products of each block of scaled factors are summed from zero in gemm_accumulator,
  // and the block's sum times both scales is added in FP32; see src/execute/block_products.h.
  int64_t sum_block = 0;          // the length of a block along the sum; 0: one sum
  int32_t accumulator_site = -1;  // measured only if the accumulator is not the container's own
};

struct Program {
  std::vector<ProgramValue> values;
  std::vector<Instruction> instructions;  // grouped by node, in node order
  std::map<std::string, int> external;    // inputs, parameters, buffers, seed -> program value
  // "loss", "output:NAME", "grad:PARAMETER", "mutation:BUFFER" -> program value; for more passes
  // also pass_gradient_result()
  std::map<std::string, int> results;
  // Where a rule's loss_scale multiplies gradients beyond the loss scale: site -> factor.
  std::map<int32_t, double> site_factors;
  FactorScaling scaling;                                       // the policy's, for scaled_casts
  bool rounds_dropout_scale = false;                           // the policy's
  int cpu_threads = 1;                                         // the policy's
  const FlashKernel* flash_kernel = &flash_kernels().front();  // the policy's
  std::vector<ScaledCast> scaled_casts;
};

// Whether it is the gradient of a parameter.
inline bool is_gradient_result(std::string_view result) {
  return result.starts_with("grad:");
}
// The result that holds a parameter's gradient of one of several passes.
inline std::string pass_gradient_result(const BackwardPass& pass, const std::string& parameter) {
  return "grad:" + parameter + ":" + pass.name;
}

}  // namespace lockstep
