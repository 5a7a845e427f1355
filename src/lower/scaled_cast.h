// Product operands that are rounded after scaling.
// Lowering looks up every operand of every product here. The result is a scaled cast: a format, the
// rule of its scale, and for block formats the way the tensor is cut, which depends on the axis of
// this product's sum. src/execute/scaled_casts.cc executes it.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "emulation/kernels/block_quantize.h"
#include "src/core/error.h"
#include "src/graph/ir.h"
#include "src/policy/policy.h"

namespace lockstep {

inline constexpr int64_t kHadamardSize = 16;  // neighbours that a Hadamard transform mixes
// The signs of NVFP4's recipe as a mask: 1 1 1 -1 1 -1 -1 -1 -1 -1 -1 1 -1 1 -1 -1.
inline constexpr uint16_t kFixedHadamardSigns = 0b1101'0111'1110'1000;

struct ScaledCast {
  ScalingKind kind = ScalingKind::kUnit;
  FactorFormat to;
  // First a Hadamard transform along the sum, in BF16. Bit i of `signs`: row i is negated.
  Hadamard hadamard = Hadamard::kNone;
  uint16_t signs = 0;
  // The products that read it sum block by block: they need the scale of every block.
  bool keeps_scales = false;
  // The tensor as a matrix whose blocks run along the sum; squares are the same along both axes.
  BlockShape shape;
  // The name of a delayed scaling's history, the same in training and in evaluation: layer, op and
  // operand of the first consumer.
  std::string name;

  // Two casts of one value that agree in these fields give the same numbers.
  auto sameness() const {
    const bool by_lines = to.block != nullptr && !to.square;
    const int axis = by_lines || keeps_scales || rotates() ? shape.axis : -1;
    return std::tuple(to.element, to.block, to.rounding, to.square, to.fp32_scale, rotates(), signs,
                      axis);
  }
  bool rotates() const { return hadamard != Hadamard::kNone; }
  // "mxfp8_e4m3+rceil, blocks down" for `explain`; "current" and the like for whole tensors.
  std::string text() const;
};

class ScaledOperands {
 public:
  ScaledOperands(const Policy& policy, const Graph& graph) : policy_(policy), graph_(graph) {}

  // The cast of this factor of `node`, which computes forward op `forward_op` or its gradient.
  // nullopt: the policy does not scale it. The product's accumulator is accumulator_of's.
  std::optional<ScaledCast> cast_of(const Node& node, size_t operand,
                                    const std::string& forward_op);
  // The accumulator that [scaling] names for this node's product, or null.
  const Accumulator* accumulator_of(const Node& node, const std::string& forward_op) const;

  // Adds a problem for every sum that the Hadamard transform cannot cut into groups.
  void report_shapes(ProblemList& problems) const;
  // Adds a problem if the graph has none of the ops that the policy scales.
  void report_unused(ProblemList& problems) const;

 private:
  bool is_scaled_op(const std::string& forward_op) const;

  const Policy& policy_;
  const Graph& graph_;
  std::map<std::string, int> names_;  // how many casts had this name
  std::vector<std::string> shape_problems_;
  bool used_ = false;
};

}  // namespace lockstep
