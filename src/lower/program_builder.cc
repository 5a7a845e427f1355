// Casts are shared: the second consumer of a value in the same format and rounding reads the first
// one's cast, and its site is added to that cast's list.
#include "src/lower/program_builder.h"

namespace lockstep {

int ProgramBuilder::add_value(const std::string& id, const TensorType& type, const Format* format) {
  program_.values.push_back({id, type, type.element == ElementType::kInt ? nullptr : format});
  return static_cast<int>(program_.values.size()) - 1;
}

void ProgramBuilder::add_external(const std::string& id, const TensorType& type,
                                  const Format* format) {
  stored_[id] = program_.external[id] = add_value(id, type, format);
}

std::pair<int, Instruction*> ProgramBuilder::add_instruction(InstructionKind kind) {
  Instruction& added = program_.instructions.emplace_back();
  added.kind = kind;
  added.node = node_;
  return {static_cast<int>(program_.instructions.size()) - 1, &added};
}

int ProgramBuilder::read(int value, const Format* target, Rounding rounding, int32_t site,
                         int32_t unmeasured_key) {
  if (target == nullptr || contains(*target, *format_of(value))) {
    observe(value, site);
    return value;
  }
  const auto [found, is_new] = casts_.try_emplace({value, target, rounding}, 0);
  if (is_new) {
    const ProgramValue from = program_.values[value];
    const int result = add_value(from.graph_value, from.type, target);
    const auto [index, cast] = add_instruction(InstructionKind::kCast);
    cast->inputs = {value};
    cast->outputs = {result};
    cast->roundings = {{target, rounding, {}, unmeasured_key}};
    found->second = measured_by_[result] = index;
  }
  Instruction& cast = program_.instructions[found->second];
  if (site >= 0) cast.roundings[0].sites.push_back(site);
  return cast.outputs[0];
}

int ProgramBuilder::rescale(int value, double factor, const Format* format) {
  const auto [found, is_new] = rescaled_.try_emplace({value, factor, format}, 0);
  if (!is_new) return found->second;
  const ProgramValue from = program_.values[value];
  const int result = found->second = add_value(from.graph_value, from.type, format);
  const auto [index, cast] = add_instruction(InstructionKind::kCast);
  cast->inputs = {value};
  cast->outputs = {result};
  cast->roundings = {{format, Rounding::kNearestEven, {}}};
  cast->factor = static_cast<float>(factor);
  measured_by_[result] = index;
  return result;
}

int ProgramBuilder::read_scaled(int value, const ScaledCast& cast, int32_t site) {
  const auto [found, is_new] = scaled_casts_.try_emplace({value, cast.sameness()}, 0);
  if (is_new) {
    const ProgramValue from = program_.values[value];
    const int result = add_value(from.graph_value, from.type, cast.to.element);
    const int place = static_cast<int>(program_.scaled_casts.size());
    program_.scaled_casts.push_back(cast);
    program_.values[result].scaled_cast = place;
    const auto [index, added] = add_instruction(InstructionKind::kCast);
    added->inputs = {value};
    added->outputs = {result};
    added->roundings = {{cast.to.element, cast.to.rounding, {}}};
    added->scaled_cast = place;
    found->second = index;
  }
  Instruction& made = program_.instructions[found->second];
  if (site >= 0) made.roundings[0].sites.push_back(site);
  return made.outputs[0];
}

// An operand without a further cast is measured on the cast that made it, or observed by itself.
void ProgramBuilder::observe(int value, int32_t site) {
  if (site < 0) return;
  const auto [found, is_new] = measured_by_.try_emplace(value, 0);
  if (is_new) {
    const auto [index, observation] = add_instruction(InstructionKind::kObserve);
    observation->inputs = {value};
    observation->roundings = {{format_of(value), Rounding::kNearestEven, {}}};
    found->second = index;
  }
  program_.instructions[found->second].roundings[0].sites.push_back(site);
}

Instruction& ProgramBuilder::add_op(const Node& node, std::vector<int> inputs,
                                    std::vector<ValueRounding> roundings) {
  Instruction& op = *add_instruction(InstructionKind::kOp).second;
  op.inputs = std::move(inputs);
  for (size_t k = 0; k < node.outputs.size(); ++k) {
    const std::string id = output_id(node, k);
    op.outputs.push_back(stored_[id] = add_value(id, node.outputs[k], roundings[k].format));
  }
  op.roundings = std::move(roundings);
  return op;
}

}  // namespace lockstep
