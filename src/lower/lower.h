// How does a policy turn a step graph into something to execute?
// Lowering makes every cast explicit. A program is a straight list of instructions; executing it
// needs no further decision. `to_text` is what `lockstep explain` prints.
//
//   forward op      operands cast by the op's class (autocast), or left as they are; result rounded
//                   once to the output format
//   backward op     runs in the formats its forward partner ran in: gradients of an output in the
//                   output's format, saved operands as the forward op saw them (the same cast),
//                   each result rounded to the format of the operand it is the gradient of
//   gradient add    in the format of the value it is the gradient of (a parameter used in one
//                   format only: in that format, as torch sums on the cached cast, unless the
//                   policy has no weight_cache)
//   scaled factor   ([scaling]) the operand as its class casts it, a parameter as it is stored, is
//                   multiplied by its scale and rounded; block formats once per axis of summation
// A value is cast to a format once per step; later consumers reuse the cast.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "src/graph/ir.h"
#include "src/graph/site.h"
#include "src/lower/scaled_cast.h"
#include "src/policy/policy.h"

namespace lockstep {

// A value of the program: a graph value in one format.
struct ProgramValue {
  std::string graph_value;  // id in the step graph
  TensorType type;
  const Format* format;  // null for integers
  // Made by this one of Program::scaled_casts: it holds the scaled numbers; -1: not scaled.
  int scaled_cast = -1;
};

// What happens to one output of an op, or to a cast's result.
struct ValueRounding {
  const Format* format = nullptr;  // null: integer, nothing to do
  Rounding rounding = Rounding::kNearestEven;
  std::vector<int32_t> sites;  // where its statistics stand; the first keys stochastic rounding
  // Keys it where no site is measured: ~site for the cast in front of that site's scaled cast.
  int32_t unmeasured_key = 0;
  uint32_t key() const {
    return static_cast<uint32_t>(sites.empty() ? unmeasured_key : sites.front());
  }
};

enum class InstructionKind : uint8_t {
  kCast,     // inputs[0], times a factor, rounded into outputs[0]
  kOp,       // runs the node, then rounds each output in place
  kObserve,  // statistics of inputs[0] as it is, for operand sites that no cast feeds
};

struct Instruction {
  InstructionKind kind;
  int node = 0;                          // index into Graph::nodes it belongs to
  std::vector<int> inputs, outputs;      // program values
  std::vector<ValueRounding> roundings;  // one per output; kObserve: one, format of the value
  const Accumulator* gemm_accumulator = nullptr;  // kOp: both set on every op
  const Accumulator* reduce_accumulator = nullptr;
  // kOp with sums of products: the formats in which the accumulator reads the inputs, by index;
  // null for what is no factor.
  std::vector<const Format*> factor_formats = {};
  std::vector<const Format*> part_formats = {};  // kOp: see OpCall
  float factor = 1;  // kCast: a power of two that multiplies before the rounding
  // kCast: one of Program::scaled_casts, or -1. An op that reads such values has their scales
  // divided out of its sums of products.
  int scaled_cast = -1;
  int32_t accumulator_site = -1;  // measured only where the accumulator is not the container's own
};

struct Program {
  std::vector<ProgramValue> values;
  std::vector<Instruction> instructions;  // grouped by node, in node order
  std::map<std::string, int> external;    // inputs, parameters, buffers, seed -> program value
  // "loss", "output:NAME", "grad:PARAMETER", "mutation:BUFFER" -> program value; of several passes
  // also pass_gradient_result()
  std::map<std::string, int> results;
  // Where a rule's loss_scale multiplies gradients beyond the loss scale: site -> factor.
  std::map<int32_t, double> site_factors;
  FactorScaling scaling;                                       // the policy's, for scaled_casts
  bool rounds_dropout_scale = false;                           // the policy's
  const FlashKernel* flash_kernel = &flash_kernels().front();  // the policy's
  std::vector<ScaledCast> scaled_casts;
};

// The result that holds a parameter's gradient of one of several passes.
inline std::string pass_gradient_result(const BackwardPass& pass, const std::string& parameter) {
  return "grad:" + parameter + ":" + pass.name;
}

// `step` is a step graph, or a forward graph (evaluation); `sites` is its own table, as make_sites
// gives it. Rules that match nothing are an error only on a step graph: an evaluation graph lacks
// the backward half of the places.
// `container_is_fp64`: the truth lane; every format becomes fp64 and no cast remains.
// Throws: InputError listing every rule that matches nothing and every value that a buffer cannot
// take.
Program lower(const Graph& step, const SiteTable& sites, const Policy& policy,
              bool container_is_fp64 = false);

// One line per op, its operands below each other with the casts that feed them.
std::string to_text(const Program& program, const Graph& step, const SiteTable& sites);

// The same for programs to read:
//   {"model": "lenet", "values": {"p:fc.weight": "fp32", "n3": "fp16", "in1": "int", ...},
//    "ops": [{"node": "n3", "layer": "fc", "op": "linear", "backward": false,
//             "inputs": [{"value": "n2", "as": "fp16"}, ...],
//             "outputs": [{"value": "n3", "format": "fp16"}, ...], "accumulator": "fp32_fused"}]}
// "as" is the format the value is read in, after any cast; "values" holds what stands between
// steps. "accumulator" is absent where an op sums no products.
std::string to_json(const Program& program, const Graph& step);

}  // namespace lockstep
