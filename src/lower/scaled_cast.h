// Which factors of a step are rounded after scaling, and how?
// Lowering asks for every factor of every sum of products; the answer is a scaled cast: a format,
// the rule of its scale, and for block formats how the tensor is cut, which depends on the axis
// that this very product sums over. Executing one is src/execute/executor_scaled.cc.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <tuple>

#include "emulation/kernels/block_quantize.h"
#include "src/core/error.h"
#include "src/graph/ir.h"
#include "src/policy/policy.h"

namespace lockstep {

struct ScaledCast {
  ScalingKind kind = ScalingKind::kUnit;
  FactorFormat to;
  // The tensor as the matrix whose blocks run along the sum; squares are the same in both axes.
  BlockShape shape;
  // Of delayed scaling: what its history is called, the same in training and in evaluation: layer,
  // op and operand of the first consumer.
  std::string name;

  // Two casts of one value that agree in this give the same numbers.
  auto sameness() const {
    const bool by_lines = to.block != nullptr && !to.square;
    return std::tuple(to.element, to.block, to.rounding, to.square, by_lines ? shape.axis : -1);
  }
  // "mxfp8_e4m3+rceil, blocks down" for `explain`; "current" and the like for whole tensors.
  std::string text() const;
};

class ScaledFactors {
 public:
  ScaledFactors(const Policy& policy, const Graph& graph) : policy_(policy), graph_(graph) {}

  // The cast of this factor of `node`, which computes forward op `forward_op` or its gradient.
  // nullopt: the policy does not scale it.
  std::optional<ScaledCast> cast_of(const Node& node, size_t operand,
                                    const std::string& forward_op);

  // A problem where the policy scales ops of which the graph has none.
  void report_unused(ProblemList& problems) const;

 private:
  const Policy& policy_;
  const Graph& graph_;
  std::map<std::string, int> names_;  // how many casts had this name
  bool used_ = false;
};

}  // namespace lockstep
