// Binding of values, and the memory of computed ones. executor_nodes.cc runs the nodes.
#include "src/execute/executor.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <stdexcept>

#include "emulation/kernels/kernel_set.h"
#include "emulation/kernels/quantize.h"
#include "src/core/error.h"

namespace lockstep {
Executor::Executor(const Graph& graph, const SiteTable& sites, Program program, Container container,
                   const KernelSet& (*kernels)(), int readers_lag)
    : graph_(graph),
      sites_(sites),
      program_(std::move(program)),
      container_(container),
      kernels_(kernels),
      readers_lag_(readers_lag),
      adjoints_(graph, sites) {
  for (const Node& node : graph_.nodes) {
    const OpDef& op = *ops_.emplace_back(&find_op(node.op));
    const bool has_site = op.has_gemm_accumulator && op.shows_sums;
    sum_site_.push_back(has_site ? sites_.find(node.id, Point::kAccumulator, 0) : -1);
    decision_site_.push_back(op.decides ? sites_.find(node.id, Point::kOperand, 0) : -1);
  }
  given_masks_.assign(graph_.nodes.size(), nullptr);
  node_range_.assign(graph_.nodes.size(), {0, 0});
  const auto& instructions = program_.instructions;
  for (size_t i = 0; i < instructions.size(); ++i) {
    auto& [begin, end] = node_range_.at(static_cast<size_t>(instructions[i].node));
    if (begin == end) {
      begin = i;
    } else if (end != i) {
      throw std::logic_error("program: the instructions of a node are not in one piece");
    }
    end = i + 1;
  }
  mask_of_.assign(graph_.nodes.size(), -1);
  for (const Instruction& instruction : instructions) {
    const auto node = static_cast<size_t>(instruction.node);
    if (instruction.kind != InstructionKind::kOp) continue;
    const TensorType* mask = drawn_mask(graph_.nodes[node]);
    if (mask == nullptr) continue;
    const auto index = mask - graph_.nodes[node].outputs.data();
    mask_of_[node] = instruction.outputs[static_cast<size_t>(index)];
  }
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
  find_passes();
  find_buffer_updates();
  external_.assign(program_.values.size(), nullptr);
  measured_.assign(program_.values.size(), {});
  value_scale_.assign(program_.values.size(), 1);
  bind_constants();
  plan_memory({});
}

int32_t Executor::product_site(int node) const {
  const int32_t of_sums = sum_site_[static_cast<size_t>(node)];
  if (of_sums >= 0) return of_sums;
  return sites_.find(graph_.nodes[static_cast<size_t>(node)].id, Point::kOutput, 0);
}

// Lanes that share a device run one instruction at a time: what it has done since the last one is
// this node's.
void Executor::note_device_work(int node) {
  DeviceWork work = kernels().take_device_work();
  for (DeviceProduct& product : work.kinds) product.site = product_site(node);
  device_work_.merge(work);
}

void Executor::find_passes() {
  std::map<std::string_view, size_t> pass_of_node;
  for (const Node& node : graph_.nodes) pass_of_node[node.id] = static_cast<size_t>(node.pass);
  for (const Site& site : sites_.sites) {
    const auto found = pass_of_node.find(site.node);
    pass_of_.push_back(found == pass_of_node.end() ? 0 : found->second);
  }
  loss_scales_.assign(pass_count(graph_), 1);
}

void Executor::find_buffer_updates() {
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
void Executor::bind_constants() {
  constants_.reserve(graph_.constants.size());  // bound by address
  for (const Constant& constant : graph_.constants) {
    if (constant.data == nullptr) {
      throw InputError("constant '" + constant.name + "': has no data",
                       "a graph read from JSON alone cannot be executed");
    }
    const std::string id = "c:" + constant.name;
    Tensor value = *constant.data;
    if (const Format* format = external_format(id)) {
      value = value.to(container_);
      const QuantizeSpec spec{format};
      if (container_ == Container::kF64) {
        quantize<double>(kernels(), value.as<double>(), value.as<double>(), spec, nullptr);
      } else {
        quantize<float>(kernels(), value.as<float>(), value.as<float>(), spec, nullptr);
      }
    }
    constants_.push_back(std::move(value));
    bind(id, constants_.back());
  }
}

void Executor::keep_in_place() {
  keeps_in_place_ = true;
  plan_memory({.may_rest = false});
}

void Executor::leave_out_backward() {
  std::vector<bool> left_out;
  for (const Node& node : graph_.nodes) left_out.push_back(node.is_backward());
  plan_memory({.may_rest = false, .left_out = left_out});
}

// The rounding of its output changes nothing, whatever the policy: it has the operand's format.
bool Executor::is_copy(const Instruction& instruction) const {
  if (instruction.kind != InstructionKind::kOp) return false;
  if (!ops_[static_cast<size_t>(instruction.node)]->copies) return false;
  const auto to = static_cast<size_t>(instruction.outputs.at(0));
  const ProgramValue& operand = program_.values[static_cast<size_t>(instruction.inputs.at(0))];
  return operand.format == program_.values[to].format && operand.scaled_cast < 0 && old_of_[to] < 0;
}

bool Executor::is_plain_cast(const Instruction& instruction) const {
  return instruction.kind == InstructionKind::kCast && instruction.scaled_cast < 0 &&
         instruction.factor == 1;
}

bool Executor::is_shared(const Instruction& instruction) const {
  return !instruction.outputs.empty() &&
         plan_.original_of[static_cast<size_t>(instruction.outputs[0])] >= 0;
}

bool Executor::share_memory(std::string_view a, std::string_view b) const {
  return plan_.memory_of(value_of_.find(a)->second) == plan_.memory_of(value_of_.find(b)->second);
}

void Executor::plan_memory(PlanRules rules) {
  rules.container = container_;
  rules.readers_lag = readers_lag_;
  for (const int mask : mask_of_) {
    if (mask >= 0) rules.zeros_and_ones.push_back(mask);
  }
  for (const Instruction& instruction : program_.instructions) {
    if (keeps_in_place_ || !is_copy(instruction)) continue;
    rules.copies.emplace_back(instruction.inputs[0], instruction.outputs[0]);
  }
  cast_of_.assign(program_.values.size(), -1);
  for (size_t i = 0; i < program_.instructions.size(); ++i) {
    const Instruction& instruction = program_.instructions[i];
    if (!is_plain_cast(instruction)) continue;
    rules.casts.emplace_back(instruction.inputs[0], instruction.outputs[0]);
    cast_of_[static_cast<size_t>(instruction.outputs[0])] = static_cast<int>(i);
  }
  plan_ = plan_values(program_, rules);
  forget_values();
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

void Executor::forget_values() {
  values_.clear();
  values_.resize(program_.values.size());
  slots_.clear();
  slots_.resize(plan_.slots.size());
}

int64_t Executor::gradient_bytes() const {
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
  return elements * static_cast<int64_t>(bytes_of(container_));
}

void Executor::rest_and_wake(int node) {
  const CompactKernels& kernels = this->kernels().compact;
  for (const size_t r : rests_from_[static_cast<size_t>(node)]) {
    const ValuePlan::Rest& rest = plan_.rests[r];
    const Tensor& value = tensor(rest.value);
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
    if (!values_[static_cast<size_t>(rest.value)].empty()) {
      throw std::logic_error("nodes have been left out: a value did not go to rest");
    }
    Tensor& value = place(rest.value, rest.next_slot);
    for (const int copy : copies_of_[static_cast<size_t>(rest.value)]) {
      place_at(copy, value.raw());
    }
    if (rest.operand >= 0) {
      container_ == Container::kF64 ? cast_again<double>(rest) : cast_again<float>(rest);
    } else if (rest.form == CompactForm::kBit) {
      kernels.expand_mask(slot(rest.compact_slot), value.size(), value.as<int32_t>().data());
    } else {
      kernels.expand(rest.form, slot(rest.compact_slot), value.size(), value.as<float>().data());
    }
  }
}

uint8_t* Executor::slot(int number) {
  Tensor& memory = slots_[static_cast<size_t>(number)];
  if (memory.empty()) {
    constexpr auto kUnit = static_cast<int64_t>(bytes_of(Container::kI32));
    const int64_t units = (plan_.slots[static_cast<size_t>(number)] + kUnit - 1) / kUnit;
    memory = Tensor({units}, Container::kI32);
  }
  return static_cast<uint8_t*>(memory.raw());
}

Tensor& Executor::place(int value, int number) {
  return place_at(value, slot(number));
}

Tensor& Executor::place_at(int value, void* memory) {
  const TensorType& type = program_.values[static_cast<size_t>(value)].type;
  const Container container = type.element == ElementType::kInt ? Container::kI32 : container_;
  return values_[static_cast<size_t>(value)] = Tensor::over(memory, type.shape, container);
}

void Executor::bind(std::string_view value_id, const Tensor& tensor) {
  const auto it = program_.external.find(std::string(value_id));
  if (it == program_.external.end()) {
    throw std::logic_error("bind: no external value '" + std::string(value_id) + "'");
  }
  const ProgramValue& value = program_.values[it->second];
  const Container wanted = value.type.element == ElementType::kInt ? Container::kI32 : container_;
  if (tensor.container() != wanted || tensor.size() != element_count(value.type.shape)) {
    throw std::logic_error("bind: '" + std::string(value_id) + "' has shape " +
                           to_string(tensor.shape()) + ", wanted " + to_string(value.type.shape) +
                           " in the lane's container");
  }
  external_[it->second] = &tensor;
}

void Executor::give_mask(std::string_view id, const Tensor& mask) {
  for (size_t n = 0; n < graph_.nodes.size(); ++n) {
    const Node& node = graph_.nodes[n];
    if (node.id != id) continue;
    const TensorType* own = drawn_mask(node);
    if (own == nullptr || !broadcasts_to(mask.shape(), own->shape)) {
      throw std::logic_error("give_mask: node '" + node.id + "' takes no mask of shape " +
                             to_string(mask.shape()));
    }
    given_masks_[n] = &mask;
    return;
  }
  throw std::logic_error("give_mask: no node '" + std::string(id) + "'");
}

const Format* Executor::external_format(std::string_view value_id) const {
  return program_.values[program_.external.at(std::string(value_id))].format;
}

void Executor::begin_step(const ExecutionKey& key, double loss_scale, bool sample_sums) {
  begin_step(key, std::vector<double>(pass_count(graph_), loss_scale), sample_sums);
}

void Executor::begin_step(const ExecutionKey& key, std::span<const double> loss_scales,
                          bool sample_sums) {
  key_ = key;
  loss_scales_.assign(loss_scales.begin(), loss_scales.end());
  sample_sums_ = sample_sums && container_ == Container::kF32;
  std::fill(measured_.begin(), measured_.end(), Measured{});
  errors_.clear();
  values_.clear();
  values_.resize(program_.values.size());
}

double Executor::site_scale(int32_t site) const {
  if (!sites_.sites[static_cast<size_t>(site)].scaled) return 1;
  const auto found = program_.site_factors.find(site);
  const double scale = loss_scales_.at(pass_of_[static_cast<size_t>(site)]);
  return found == program_.site_factors.end() ? scale : scale * found->second;
}

const Tensor& Executor::tensor(int value) const {
  if (external_[value] != nullptr) return *external_[value];
  const Tensor& found = values_[static_cast<size_t>(value)];
  if (found.empty()) {
    throw std::logic_error("value '" + program_.values[value].graph_value +
                           "' is neither bound nor computed, or packed until its next use");
  }
  return found;
}

// Where it is, or where it is made.
Tensor& Executor::writable(int value) {
  Tensor& found = values_[static_cast<size_t>(value)];
  return found.empty() ? place(value, plan_.slot_of[static_cast<size_t>(value)]) : found;
}

const Tensor& Executor::value(std::string_view value_id) const {
  const auto it = value_of_.find(value_id);
  if (it == value_of_.end()) {
    throw std::logic_error("program without value '" + std::string(value_id) + "'");
  }
  return tensor(it->second);
}

Tensor& Executor::mutable_value(std::string_view value_id) {
  const auto it = value_of_.find(value_id);
  if (it == value_of_.end() || external_[it->second] != nullptr) {
    throw std::logic_error("no computed value '" + std::string(value_id) + "'");
  }
  if (!keeps_in_place_) throw std::logic_error("mutable_value() without keep_in_place()");
  return writable(it->second);
}

}  // namespace lockstep
