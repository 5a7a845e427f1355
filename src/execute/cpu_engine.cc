// One pass over the program's instructions.
#include "src/execute/cpu_engine.h"

#include <algorithm>
#include <map>

#include "emulation/kernels/cpu_unit.h"
#include "src/graph/op.h"

namespace lockstep {
namespace {

class CpuSurvey {
 public:
  EngineSurvey run(const Graph& graph, const Program& program) {
    for (const Instruction& instruction : program.instructions) {
      const Node& node = graph.nodes[static_cast<size_t>(instruction.node)];
      if (instruction.kind == InstructionKind::kObserve) continue;
      if (instruction.kind == InstructionKind::kOp) look_at_op(node, instruction);
      for (const ValueRounding& rounding : instruction.roundings) look_at_rounding(rounding);
    }
    EngineSurvey survey{.fallbacks = std::move(fallbacks_), .missing = {}};
    for (const auto& [unit, uses] : missing_) {
      std::string why_not, all;
      cpu_has(unit, &why_not);
      for (const std::string& use : uses) all += (all.empty() ? "" : ", ") + use;
      survey.missing.push_back(why_not + " (" + std::string(cpu_unit_info(unit).instructions) +
                               "), needed for " + all);
    }
    return survey;
  }

 private:
  static void add(std::vector<std::string>& names, const std::string& name) {
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  }
  // `unit`: the unit that does it, or null.
  void note(const CpuUnitInfo* unit, const std::string& what) {
    if (unit == nullptr) {
      add(fallbacks_, what);
    } else if (!cpu_has(unit->unit)) {
      add(missing_[unit->unit], what);
    }
  }
  void look_at_op(const Node& node, const Instruction& instruction) {
    if (!find_op(node.op).sums.of_products) return add(fallbacks_, node.op);
    const Accumulator& accumulator = *instruction.gemm_accumulator;
    note(cpu_unit_of(accumulator), "sums by " + accumulator.name);
  }
  void look_at_rounding(const ValueRounding& rounding) {
    if (rounding.format == nullptr || rounding.format->is_fp32()) return;
    note(cpu_unit_of(*rounding.format, rounding.rounding),
         "rounding to " + rounding.format->name + " " + std::string(to_string(rounding.rounding)));
  }

  std::vector<std::string> fallbacks_;
  std::map<CpuUnit, std::vector<std::string>> missing_;  // unit -> what needs it
};

}  // namespace

EngineSurvey survey_cpu_engine(const Graph& graph, const Program& program) {
  return CpuSurvey().run(graph, program);
}

}  // namespace lockstep
