// One pass over the program's instructions.
#include "src/execute/software_engine.h"

#include <algorithm>

#include "emulation/kernels/active_kernels.h"
#include "emulation/kernels/cuda_devices.h"
#include "src/graph/op.h"

namespace lockstep {

EngineSurvey survey_software_engine(const Graph& graph, const Program& program) {
  EngineSurvey survey;
  if (software_device().empty()) return survey;
  for (const Instruction& instruction : program.instructions) {
    if (instruction.kind != InstructionKind::kOp) continue;
    const OpDef& op = find_op(graph.nodes[static_cast<size_t>(instruction.node)].op);
    if (!op.sums.of_products) continue;
    const auto factor = [&](size_t i) {
      return instruction.factor_formats.at(static_cast<size_t>(op.sums.operands.at(i)));
    };
    const Accumulator& accumulator = *instruction.gemm_accumulator;
    const std::string sums = "sums by " + accumulator.name;
    if (!is_modelled_sum(accumulator, factor(0), factor(1)) &&
        std::ranges::count(survey.fallbacks, sums) == 0) {
      survey.fallbacks.push_back(sums);
    }
  }
  return survey;
}

}  // namespace lockstep
