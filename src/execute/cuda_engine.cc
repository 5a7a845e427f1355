// One pass over the program's instructions.
#include "src/execute/cuda_engine.h"

#include <algorithm>

#include "emulation/kernels/cuda/device.h"
#include "emulation/kernels/cuda/gemm.h"
#include "src/graph/op.h"

namespace lockstep {

std::string why_no_gpu() {
  std::string why_not;
  cuda::gpu_device(&why_not);
  return why_not;
}

const Hardware* gpu_hardware() {
  return &cuda::gpu_device()->hardware();
}

const Hardware* played_hardware() {
  return &cuda::host_device().hardware();
}

EngineSurvey survey_cuda_engine(const Graph& graph, const Program& program) {
  EngineSurvey survey;
  const auto fall_back = [&](const std::string& what) {
    if (std::ranges::count(survey.fallbacks, what) == 0) survey.fallbacks.push_back(what);
  };
  for (const Instruction& instruction : program.instructions) {
    if (instruction.kind != InstructionKind::kOp) continue;
    const Node& node = graph.nodes[static_cast<size_t>(instruction.node)];
    if (!find_op(node.op).has_gemm_accumulator) {
      fall_back(node.op);
    } else if (!cuda::is_device_sum(*instruction.gemm_accumulator)) {
      fall_back("sums by " + instruction.gemm_accumulator->name);
    }
  }
  fall_back("rounding and statistics");
  return survey;
}

}  // namespace lockstep
