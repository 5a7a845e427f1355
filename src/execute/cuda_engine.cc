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
    if (!op.sums.of_products) {
      fall_back(node.op);
      continue;
    }
    const auto factor = [&](size_t i) {
      return instruction.factor_formats.at(static_cast<size_t>(op.sums.operands.at(i)));
    };
    const Format *a = factor(0), *b = factor(1);
    const Accumulator& accumulator = *instruction.gemm_accumulator;
    if (!is_cuda_sum(accumulator, a, b)) {
      fall_back("sums by " + accumulator.name);
      continue;
    }
    // Without a format of its own, a factor has the accumulator's only one.
    const auto name = [&](const Format* format) {
      return (format != nullptr ? format : accumulator.operands.front())->name;
    };
    survey.device_sums[instruction.node] = accumulator.name + " " + name(a) + " x " + name(b);
  }
  fall_back("rounding and statistics");
  return survey;
}

}  // namespace lockstep
