// One pass over the program's instructions.
#include "src/execute/cuda_engine.h"

#include <algorithm>

#include "emulation/kernels/cuda_devices.h"
#include "src/graph/op.h"

namespace lockstep {

EngineSurvey survey_cuda_engine(const Graph& graph, const Program& program) {
  EngineSurvey survey;
  const auto fall_back = [&](const std::string& what) {
    if (std::ranges::count(survey.fallbacks, what) == 0) survey.fallbacks.push_back(what);
  };
  for (const Instruction& instruction : program.instructions) {
    if (instruction.kind != InstructionKind::kOp) continue;
    const Node& node = graph.nodes[static_cast<size_t>(instruction.node)];
    const OpDef& op = find_op(node.op);
    if (!op.has_gemm_accumulator) {
      fall_back(node.op);
      continue;
    }
    const auto factor = [&](size_t i) {
      return instruction.factor_formats.at(static_cast<size_t>(op.product_operands.at(i)));
    };
    const Format *a = factor(0), *b = factor(1);
    if (a == nullptr || b == nullptr || !is_cuda_sum(*instruction.gemm_accumulator, *a, *b)) {
      fall_back("sums by " + instruction.gemm_accumulator->name);
      continue;
    }
    survey.device_sums[instruction.node] =
        instruction.gemm_accumulator->name + " " + a->name + " x " + b->name;
  }
  fall_back("rounding and statistics");
  return survey;
}

}  // namespace lockstep
