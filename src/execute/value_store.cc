// See value_store.h.
#include "src/execute/value_store.h"

#include <set>
#include <stdexcept>

#include "emulation/kernels/kernel_set.h"
#include "src/core/error.h"
#include "src/execute/storage.h"
#include "src/graph/op.h"

namespace lockstep {
namespace {

// Whether the cast's output is its operand, rounded, and nothing else.
bool is_plain_cast(const Instruction& instruction) {
  return instruction.kind == InstructionKind::kCast && instruction.scaled_cast < 0 &&
         instruction.factor == 1;
}

}  // namespace

ValueStore::ValueStore(const Graph& graph, const Program& program, const ExecutionRules& rules)
    : graph_(graph), program_(program), rules_(rules) {
  find_values();
  find_masks();
  find_buffer_updates();
  external_.assign(program_.values.size(), nullptr);
  scales_.assign(program_.values.size(), 1);
  bind_constants();
  plan_memory();
}

void ValueStore::find_values() {
  for (size_t v = 0; v < program_.values.size(); ++v) {
    value_of_.emplace(program_.values[v].graph_value, static_cast<int>(v));
  }
  // After the cast that removes a layer's own loss scale, if there is one.
  const auto take_result = [&](const std::string& id, const std::string& name) {
    const auto result = program_.results.find(name);
    if (result != program_.results.end()) value_of_[id] = result->second;
  };
  for (const auto& [name, id] : graph_.gradients) take_result(id, "grad:" + name);
  for (const BackwardPass& pass : graph_.passes) {
    for (const auto& [name, id] : pass.gradients) take_result(id, pass_gradient_result(pass, name));
  }
}

void ValueStore::find_masks() {
  mask_of_.assign(graph_.nodes.size(), -1);
  for (const Instruction& instruction : program_.instructions) {
    const auto node = static_cast<size_t>(instruction.node);
    if (instruction.kind != InstructionKind::kOp) continue;
    const TensorType* mask = drawn_mask(graph_.nodes[node]);
    if (mask == nullptr) continue;
    const auto index = mask - graph_.nodes[node].outputs.data();
    mask_of_[node] = instruction.outputs[static_cast<size_t>(index)];
  }
}

void ValueStore::find_buffer_updates() {
  old_of_.assign(program_.values.size(), -1);
  for (const Mutation& mutation : graph_.mutations) {
    const auto changed = value_of_.find(mutation.value);
    const auto old = program_.external.find("b:" + mutation.buffer);
    if (changed == value_of_.end() || old == program_.external.end()) continue;
    const auto value = static_cast<size_t>(changed->second);
    if (program_.values[value].type.element == ElementType::kInt) continue;
    old_of_[value] = old->second;
  }
}

// Constants are rounded once, to the nearest number of their format.
void ValueStore::bind_constants() {
  constants_.reserve(graph_.constants.size());  // bound by address
  for (const Constant& constant : graph_.constants) {
    if (constant.data == nullptr) {
      throw InputError("constant '" + constant.name + "': has no data",
                       "a graph read from JSON alone cannot be executed");
    }
    const std::string id = "c:" + constant.name;
    Tensor& value = constants_.emplace_back(*constant.data);
    if (const Format* format = external_format(id)) {
      value = value.to(rules_.container);
      store(rules_.kernels(), value, value, {format});
    }
    bind(id, value);
  }
}

// The rounding of its output changes nothing, whatever the policy: it has the operand's format.
bool ValueStore::is_copy(const Instruction& instruction) const {
  if (instruction.kind != InstructionKind::kOp) return false;
  if (!find_op(graph_.nodes[static_cast<size_t>(instruction.node)].op).elements.copies)
    return false;
  const int to = instruction.outputs.at(0);
  const ProgramValue& operand = program_.values[static_cast<size_t>(instruction.inputs.at(0))];
  return operand.format == program_.values[static_cast<size_t>(to)].format &&
         operand.scaled_cast < 0 && old_of(to) < 0;
}

PlanRules ValueStore::plan_rules() {
  PlanRules rules{.container = rules_.container,
                  .readers_lag = rules_.readers_lag,
                  .may_rest = !rules_.in_place && !rules_.forward_only};
  for (const int mask : mask_of_) {
    if (mask >= 0) rules.zeros_and_ones.push_back(mask);
  }
  cast_of_.assign(program_.values.size(), -1);
  for (size_t i = 0; i < program_.instructions.size(); ++i) {
    const Instruction& instruction = program_.instructions[i];
    if (!rules_.in_place && is_copy(instruction)) {
      rules.copies.emplace_back(instruction.inputs[0], instruction.outputs[0]);
    } else if (is_plain_cast(instruction)) {
      rules.casts.emplace_back(instruction.inputs[0], instruction.outputs[0]);
      cast_of_[static_cast<size_t>(instruction.outputs[0])] = static_cast<int>(i);
    }
  }
  if (!rules_.forward_only) return rules;
  for (const Node& node : graph_.nodes) rules.left_out.push_back(node.is_backward());
  return rules;
}

void ValueStore::plan_memory() {
  plan_ = plan_values(program_, plan_rules());
  forget();
  copies_of_.assign(program_.values.size(), {});
  for (size_t v = 0; v < plan_.original_of.size(); ++v) {
    const int original = plan_.original_of[v];
    if (original >= 0) copies_of_[static_cast<size_t>(original)].push_back(static_cast<int>(v));
  }
  rests_from_.assign(graph_.nodes.size(), {});
  rests_to_.assign(graph_.nodes.size(), {});
  for (size_t r = 0; r < plan_.rests.size(); ++r) {
    rests_from_.at(static_cast<size_t>(plan_.rests[r].begins)).push_back(r);
    rests_to_.at(static_cast<size_t>(plan_.rests[r].ends)).push_back(r);
  }
}

void ValueStore::bind(std::string_view id, const Tensor& tensor) {
  const auto it = program_.external.find(std::string(id));
  if (it == program_.external.end()) {
    throw std::logic_error("bind: no external value '" + std::string(id) + "'");
  }
  const ProgramValue& value = program_.values[it->second];
  const Container wanted =
      value.type.element == ElementType::kInt ? Container::kI32 : rules_.container;
  if (tensor.container() != wanted || tensor.size() != element_count(value.type.shape)) {
    throw std::logic_error("bind: '" + std::string(id) + "' has shape " +
                           to_string(tensor.shape()) + ", wanted " + to_string(value.type.shape) +
                           " in the lane's container");
  }
  external_[it->second] = &tensor;
}

const Format* ValueStore::external_format(std::string_view id) const {
  return program_.values[external(id)].format;
}

const Tensor& ValueStore::of(std::string_view id) const {
  const auto it = value_of_.find(id);
  if (it == value_of_.end()) {
    throw std::logic_error("program without value '" + std::string(id) + "'");
  }
  return at(it->second);
}

Tensor& ValueStore::mutable_of(std::string_view id) {
  const auto it = value_of_.find(id);
  if (it == value_of_.end() || external_[it->second] != nullptr) {
    throw std::logic_error("no computed value '" + std::string(id) + "'");
  }
  if (!rules_.in_place) throw std::logic_error("mutable_of() without ExecutionRules::in_place");
  return writable(it->second);
}

bool ValueStore::share_memory(std::string_view a, std::string_view b) const {
  return plan_.memory_of(value_of_.find(a)->second) == plan_.memory_of(value_of_.find(b)->second);
}

const Tensor& ValueStore::at(int value) const {
  if (external_[value] != nullptr) return *external_[value];
  const Tensor& found = values_[static_cast<size_t>(value)];
  if (found.empty()) {
    throw std::logic_error("value '" + program_.values[value].graph_value +
                           "' is neither bound nor computed, or packed until its next use");
  }
  return found;
}

Tensor& ValueStore::writable(int value) {
  Tensor& found = values_[static_cast<size_t>(value)];
  return found.empty() ? place(value, plan_.slot_of[static_cast<size_t>(value)]) : found;
}

// No element is written, because other lanes may be reading the operand.
void ValueStore::share(int value) {
  const int original = plan_.memory_of(value);
  at(original);  // throws unless it is there
  place_at(value, values_[static_cast<size_t>(original)].raw());
}

double ValueStore::product_of_scales(std::span<const int> values) const {
  double product = 1;
  for (const int v : values) product *= static_cast<double>(scale(v));
  return product;
}

void ValueStore::begin_step() {
  values_.clear();
  values_.resize(program_.values.size());
}

void ValueStore::rest_and_wake(int node, const CastAgain& cast_again) {
  const CompactKernels& kernels = rules_.kernels().compact;
  for (const size_t r : rests_from_[static_cast<size_t>(node)]) {
    const ValuePlan::Rest& rest = plan_.rests[r];
    const Tensor& value = at(rest.value);
    if (rest.operand < 0 && rest.form == CompactForm::kBit) {
      kernels.compact_mask(value.as<int32_t>().data(), value.size(), slot(rest.compact_slot));
    } else if (rest.operand < 0) {
      kernels.compact(rest.form, value.as<float>().data(), value.size(), slot(rest.compact_slot));
    }
    const auto original = static_cast<size_t>(rest.value);
    values_[original] = Tensor();
    for (const int copy : copies_of_[original]) values_[static_cast<size_t>(copy)] = Tensor();
  }
  for (const size_t r : rests_to_[static_cast<size_t>(node)]) {
    const ValuePlan::Rest& rest = plan_.rests[r];
    const auto original = static_cast<size_t>(rest.value);
    if (!values_[original].empty()) {
      throw std::logic_error("nodes have been left out: a value did not go to rest");
    }
    Tensor& value = place(rest.value, rest.next_slot);
    for (const int copy : copies_of_[original]) place_at(copy, value.raw());
    if (rest.operand >= 0) {
      const auto cast = static_cast<size_t>(cast_of_[original]);
      cast_again(program_.instructions[cast], at(rest.operand), value);
    } else if (rest.form == CompactForm::kBit) {
      kernels.expand_mask(slot(rest.compact_slot), value.size(), value.as<int32_t>().data());
    } else {
      kernels.expand(rest.form, slot(rest.compact_slot), value.size(), value.as<float>().data());
    }
  }
}

uint8_t* ValueStore::slot(int number) {
  Tensor& memory = slots_[static_cast<size_t>(number)];
  if (memory.empty()) {
    constexpr auto kUnit = static_cast<int64_t>(bytes_of(Container::kI32));
    const int64_t units = (plan_.slots[static_cast<size_t>(number)] + kUnit - 1) / kUnit;
    memory = Tensor({units}, Container::kI32);
  }
  return static_cast<uint8_t*>(memory.raw());
}

Tensor& ValueStore::place(int value, int number) {
  return place_at(value, slot(number));
}

Tensor& ValueStore::place_at(int value, void* memory) {
  const TensorType& type = program_.values[static_cast<size_t>(value)].type;
  const Container container =
      type.element == ElementType::kInt ? Container::kI32 : rules_.container;
  return values_[static_cast<size_t>(value)] = Tensor::over(memory, type.shape, container);
}

int64_t ValueStore::gradient_bytes() const {
  std::set<int> gradients;
  for (const auto& [name, value] : program_.results) {
    const int memory = plan_.memory_of(value);
    const bool is_own = plan_.slot_of[static_cast<size_t>(memory)] >= 0;
    if (is_gradient_result(name) && is_own) gradients.insert(memory);
  }
  int64_t elements = 0;
  for (const int value : gradients) {
    elements += element_count(program_.values[static_cast<size_t>(value)].type.shape);
  }
  return elements * static_cast<int64_t>(bytes_of(rules_.container));
}

void ValueStore::forget() {
  begin_step();
  slots_.clear();
  slots_.resize(plan_.slots.size());
}

}  // namespace lockstep
