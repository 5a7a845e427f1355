// Runs programs: one function per kind of instruction, and the sharing of tensors by liveness.
#include "src/execute/executor.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "emulation/kernels/kernel_set.h"
#include "emulation/kernels/quantize.h"
#include "src/core/error.h"

namespace lockstep {
namespace {

template <typename T>
const T* data(const Tensor& tensor) {
  return tensor.as<T>().data();
}

}  // namespace

Executor::Executor(const Graph& graph, const SiteTable& sites, Program program, Container container,
                   const KernelSet& (*kernels)())
    : graph_(graph),
      sites_(sites),
      program_(std::move(program)),
      container_(container),
      kernels_(kernels) {
  for (const Node& node : graph_.nodes) {
    const OpDef& op = *ops_.emplace_back(&find_op(node.op));
    const bool has_site = op.has_gemm_accumulator && op.shows_sums;
    sum_site_.push_back(has_site ? sites_.find(node.id, Point::kAccumulator, 0) : -1);
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
  for (size_t v = 0; v < program_.values.size(); ++v) {
    value_of_.emplace(program_.values[v].graph_value, static_cast<int>(v));
  }
  // Behind the cast that takes a layer's own loss scale away, where there is one.
  const auto take_result = [&](const std::string& id, const std::string& name) {
    const auto result = program_.results.find(name);
    if (result != program_.results.end()) value_of_[id] = result->second;
  };
  for (const auto& [name, id] : graph_.gradients) take_result(id, "grad:" + name);
  for (const BackwardPass& pass : graph_.passes) {
    for (const auto& [name, id] : pass.gradients) take_result(id, pass_gradient_result(pass, name));
  }
  find_passes();
  external_.assign(program_.values.size(), nullptr);
  measured_.assign(program_.values.size(), {});
  value_scale_.assign(program_.values.size(), 1);
  bind_constants();
  plan_slots();
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
        quantize<double>(value.as<double>(), value.as<double>(), spec, nullptr);
      } else {
        quantize<float>(value.as<float>(), value.as<float>(), spec, nullptr);
      }
    }
    constants_.push_back(std::move(value));
    bind(id, constants_.back());
  }
}

// Two values share a slot when they agree in shape and container and the first is dead before the
// node that makes the second: not at the same node, because other lanes still look at this lane's
// values when that node is done.
void Executor::plan_slots() {
  constexpr int kForever = 1 << 30;
  std::vector<int> last_use(program_.values.size(), -1);
  for (const Instruction& instruction : program_.instructions) {
    for (int v : instruction.inputs) last_use[v] = std::max(last_use[v], instruction.node);
    for (int v : instruction.outputs) last_use[v] = std::max(last_use[v], instruction.node);
  }
  for (const auto& [id, v] : program_.results) last_use[v] = kForever;
  for (const auto& [id, v] : program_.external) last_use[v] = kForever;

  slot_of_.assign(program_.values.size(), -1);
  using Key = std::pair<Shape, bool>;                      // bool: integer
  std::map<Key, std::vector<std::pair<int, int>>> in_use;  // slot, last use of its value
  int slot_count = 0;
  for (const Instruction& instruction : program_.instructions) {
    for (int v : instruction.outputs) {
      const ProgramValue& value = program_.values[v];
      auto& candidates = in_use[{value.type.shape, value.type.element == ElementType::kInt}];
      const auto free = std::find_if(candidates.begin(), candidates.end(),
                                     [&](auto& c) { return c.second < instruction.node; });
      if (free != candidates.end()) {
        slot_of_[v] = free->first;
        free->second = last_use[v];
      } else {
        slot_of_[v] = slot_count++;
        candidates.emplace_back(slot_of_[v], last_use[v]);
      }
    }
  }
  slots_.resize(static_cast<size_t>(slot_count));
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
}

double Executor::site_scale(int32_t site) const {
  if (!sites_.sites[static_cast<size_t>(site)].scaled) return 1;
  const auto found = program_.site_factors.find(site);
  const double scale = loss_scales_.at(pass_of_[static_cast<size_t>(site)]);
  return found == program_.site_factors.end() ? scale : scale * found->second;
}

const Tensor& Executor::tensor(int value) const {
  if (external_[value] != nullptr) return *external_[value];
  const int slot = slot_of_[value];
  if (slot < 0 || slots_[slot].empty()) {
    throw std::logic_error("value '" + program_.values[value].graph_value +
                           "' is neither bound nor computed");
  }
  return slots_[slot];
}

Tensor& Executor::writable(int value) {
  Tensor& slot = slots_[slot_of_[value]];
  const TensorType& type = program_.values[value].type;
  if (slot.empty()) {
    slot = Tensor(type.shape, type.element == ElementType::kInt ? Container::kI32 : container_);
  }
  return slot;
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
  return writable(it->second);
}

void Executor::run_node(int node, const Executor* reference, std::span<SiteRecord> records) {
  const auto [begin, end] = node_range_[static_cast<size_t>(node)];
  for (size_t i = begin; i < end; ++i) {
    if (container_ == Container::kF64) {
      run_instruction<double>(program_.instructions[i], reference, records);
    } else {
      run_instruction<float>(program_.instructions[i], reference, records);
    }
  }
}

template <typename T>
void Executor::run_instruction(const Instruction& instruction, const Executor* reference,
                               std::span<SiteRecord> records) {
  switch (instruction.kind) {
    case InstructionKind::kCast:
      return run_cast<T>(instruction, reference, records);
    case InstructionKind::kOp:
      return run_op<T>(instruction, reference, records);
    case InstructionKind::kObserve:
      return run_observe<T>(instruction, reference, records);
  }
}

template <typename T>
ErrorStats Executor::error_of(int value, const TensorStats& stats, const Format& format,
                              double scale, const Executor* reference) const {
  if (reference == nullptr) return error_of_reference(stats);
  if (!(scale > 0 && std::isfinite(scale))) return {};  // a loss scale that has collapsed to zero
  const Tensor& lane = tensor(value);
  const Tensor& ref = reference->value(program_.values[value].graph_value);
  ErrorStats error;
  kernels_().of<T>().compare(data<T>(lane), data<float>(ref), lane.size(), scale, format, &error);
  return error;
}

template <typename T>
void Executor::finish_record(int value, const ValueRounding& rounding, const Executor* reference,
                             std::span<SiteRecord> records) {
  const int32_t first = rounding.sites.front();
  SiteRecord& record = records[first];
  record.measured = true;
  record.scale = site_scale(first) * value_scale_[value];
  const int32_t known = measured_[value].error_site;
  record.error = known >= 0 && records[known].scale == record.scale && reference != nullptr
                     ? records[known].error
                     : error_of<T>(value, record.stats, *rounding.format, record.scale, reference);
  measured_[value].error_site = first;
  for (size_t i = 1; i < rounding.sites.size(); ++i) records[rounding.sites[i]] = record;
}

// 1. y = round(x)   2. statistics of that rounding and the error of y stand at every consumer's
// site
template <typename T>
void Executor::run_cast(const Instruction& instruction, const Executor* reference,
                        std::span<SiteRecord> records) {
  const ValueRounding& rounding = instruction.roundings.at(0);
  const bool measure = !records.empty() && !rounding.sites.empty();
  const Tensor& x = tensor(instruction.inputs.at(0));
  Tensor& y = writable(instruction.outputs.at(0));
  const uint32_t site = rounding.key();
  const StochasticKey key{key_.seed, key_.stream, site, key_.step};
  TensorStats* stats = measure ? &records[site].stats : nullptr;
  const int value = instruction.outputs[0];
  if (instruction.scaled_cast >= 0) {
    const ScaledCast& cast = program_.scaled_casts[static_cast<size_t>(instruction.scaled_cast)];
    value_scale_[value] = run_scaled_cast(cast, x.as<float>(), y.as<float>(), key, stats);
  } else {
    const T* source = data<T>(x);
    if (instruction.factor != 1) {
      kernels_().of<T>().scale(source, instruction.factor, y.as<T>().data(), x.size());
      source = y.as<T>().data();
    }
    kernels_().of<T>().quantize(source, y.as<T>().data(), x.size(),
                                {rounding.format, rounding.rounding, key}, stats);
  }
  if (!measure) return;
  if (records[site].stats.inexact == 0) measured_[value].stats_site = static_cast<int32_t>(site);
  finish_record<T>(value, rounding, reference, records);
}

// 1. the op's kernels   2. the accumulator's statistics   3. each output rounded in place, measured
template <typename T>
void Executor::run_op(const Instruction& instruction, const Executor* reference,
                      std::span<SiteRecord> records) {
  std::vector<const Tensor*> inputs;
  std::vector<Tensor*> outputs;
  for (int v : instruction.inputs) inputs.push_back(&tensor(v));
  for (int v : instruction.outputs) outputs.push_back(&writable(v));
  const bool measure = !records.empty();
  std::vector<uint8_t> events;
  if (measure && instruction.accumulator_site >= 0) {
    events.assign(static_cast<size_t>(outputs[0]->size()), 0);
  }
  const KernelSet& kernels = kernels_();
  const size_t node = static_cast<size_t>(instruction.node);
  OpCall call{graph_.nodes[node],
              inputs,
              outputs,
              kernels,
              *instruction.gemm_accumulator,
              *instruction.reduce_accumulator,
              instruction.factor_formats,
              events.empty() ? nullptr : events.data()};
  call.random = {key_.seed, key_.step, static_cast<uint32_t>(instruction.node), given_masks_[node]};
  if (!instruction.roundings.empty() && instruction.roundings[0].format != nullptr) {
    const ValueRounding& first = instruction.roundings[0];
    call.inner = {first.format, first.rounding, {key_.seed, key_.stream, first.key(), key_.step}};
  }
  call.part_formats = instruction.part_formats;
  call.rounds_dropout_scale = program_.rounds_dropout_scale;
  call.flash_kernel = program_.flash_kernel;
  const int32_t sum_site = sum_site_[node];
  AccumulatorHealth sampled;
  if (measure && sample_sums_ && sum_site >= 0) call.health = &sampled;
  // What comes between the sums of products and whatever joins them.
  bool sums_pending = !events.empty() || scale_of_sums(instruction) != 1;
  const auto finish_sums = [&](bool is_output) {
    if (!events.empty()) {
      measure_accumulator<T>(instruction, events, is_output, reference, records);
    }
    divide_out_scales(instruction);
    sums_pending = false;
  };
  if (sums_pending) call.sums_ready = [&] { finish_sums(/*is_output=*/false); };
  ops_[node]->run(call);
  if (call.health != nullptr) {
    sampled.divide_by(site_scale(sum_site) * scale_of_sums(instruction));
    records[sum_site].health = sampled;
  }
  if (sums_pending) finish_sums(/*is_output=*/true);

  for (size_t o = 0; o < outputs.size(); ++o) {
    const ValueRounding& rounding = instruction.roundings.at(o);
    if (rounding.format == nullptr) continue;
    const bool measured = measure && !rounding.sites.empty();
    // A container's own format changes nothing: without statistics there is nothing to do.
    if (!measured && (rounding.format->is_fp64() || (rounding.format->is_fp32() && sizeof(T) == 4)))
      continue;
    const uint32_t site = rounding.key();
    const QuantizeSpec spec{
        rounding.format, rounding.rounding, {key_.seed, key_.stream, site, key_.step}};
    T* y = outputs[o]->as<T>().data();
    kernels.of<T>().quantize(y, y, outputs[o]->size(), spec,
                             measured ? &records[site].stats : nullptr);
    if (!measured) continue;
    const int value = instruction.outputs[o];
    if (records[site].stats.inexact == 0) measured_[value].stats_site = static_cast<int32_t>(site);
    finish_record<T>(value, rounding, reference, records);
  }
}

// The histogram, moments and hash are those of the final sums; the counts of what went wrong are
// over outputs whose chain of steps did it anywhere. Sums that are not yet the op's output (a bias
// still joins) have nothing in the reference to be compared with: compared stays 0.
template <typename T>
void Executor::measure_accumulator(const Instruction& instruction, std::span<const uint8_t> events,
                                   bool is_output, const Executor* reference,
                                   std::span<SiteRecord> records) {
  const int value = instruction.outputs.at(0);
  const Format& format = *instruction.gemm_accumulator->format;
  SiteRecord& record = records[instruction.accumulator_site];
  record.measured = true;
  record.scale = site_scale(instruction.accumulator_site) * scale_of_sums(instruction);
  record.stats = observe<T>(tensor(value).as<T>(), format);
  record.error =
      is_output ? error_of<T>(value, record.stats, format, record.scale, reference) : ErrorStats{};
  TensorStats& stats = record.stats;
  stats.to_zero = stats.to_infinity = stats.inexact = stats.nan = 0;
  for (const uint8_t event : events) {
    stats.to_zero += (event & kStepToZero) != 0;
    stats.to_infinity += (event & kStepToInfinity) != 0;
    stats.inexact += (event & kStepInexact) != 0;
    stats.nan += (event & kStepNan) != 0;
  }
}

// A value whose statistics already stand somewhere as an observer would see them is not read again:
// one produced by an exact rounding (before == after), or one observed at an earlier site.
template <typename T>
void Executor::run_observe(const Instruction& instruction, const Executor* reference,
                           std::span<SiteRecord> records) {
  const ValueRounding& rounding = instruction.roundings.at(0);
  if (records.empty() || rounding.sites.empty()) return;
  const int value = instruction.inputs.at(0);
  const int32_t site = rounding.sites[0];
  const int32_t known = measured_[value].stats_site;
  records[site].stats =
      known >= 0 ? records[known].stats : observe<T>(tensor(value).as<T>(), *rounding.format);
  measured_[value].stats_site = site;
  finish_record<T>(value, rounding, reference, records);
}

}  // namespace lockstep
