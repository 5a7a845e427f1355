// Runs the instructions of a node, one function per kind.
#include "src/execute/executor.h"

#include <stdexcept>

#include "emulation/kernels/quantize.h"
#include "src/execute/block_products.h"
#include "src/execute/other_sums.h"
#include "src/execute/storage.h"

namespace lockstep {

Executor::Executor(const Graph& graph, const SiteTable& sites, Program program,
                   const ExecutionRules& rules)
    : graph_(graph),
      sites_(sites),
      program_(std::move(program)),
      rules_(rules),
      values_(graph_, program_, rules_),
      scaled_casts_(program_.scaling),
      full_(graph_, sites_, program_, values_, rules_),
      counts_(program_, values_, rules_) {
  for (const Node& node : graph_.nodes) nodes_.push_back({.op = &find_op(node.op)});
  find_instructions();
}

void Executor::find_instructions() {
  const auto& instructions = program_.instructions;
  for (size_t i = 0; i < instructions.size(); ++i) {
    NodeState& node = nodes_.at(static_cast<size_t>(instructions[i].node));
    if (node.begin == node.end) {
      node.begin = i;
    } else if (node.end != i) {
      throw std::logic_error("program: the instructions of a node are not in one piece");
    }
    node.end = i + 1;
    sums_by_blocks_ = sums_by_blocks_ || instructions[i].sum_block > 0;
  }
}

int32_t Executor::product_site(int node) const {
  const Node& of = graph_.nodes[static_cast<size_t>(node)];
  const int32_t of_sums = sum_site(sites_, of);
  return of_sums >= 0 ? of_sums : sites_.find(of.id, Point::kOutput, 0);
}

// Lanes that share a device run one instruction at a time: what it has done since the last one is
// this node's.
void Executor::note_device_work(int node) {
  DeviceWork work = kernels().take_device_work();
  for (DeviceProduct& product : work.kinds) product.site = product_site(node);
  device_work_.merge(work);
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
    nodes_[n].given_mask = &mask;
    return;
  }
  throw std::logic_error("give_mask: no node '" + std::string(id) + "'");
}

void Executor::forget_masks() {
  for (NodeState& node : nodes_) node.given_mask = nullptr;
}

const Tensor* Executor::mask_for(size_t node, const ExecutionKey& key) const {
  const bool is_same = key.seed == key_.seed && key.step == key_.step;
  const int mask = values_.mask_of(node);
  return is_same && mask >= 0 ? &values_.at(mask) : nullptr;
}

void Executor::begin_step(const ExecutionKey& key, double loss_scale,
                          const StepMeasuring& measuring) {
  begin_step(key, std::vector<double>(pass_count(graph_), loss_scale), measuring);
}

void Executor::begin_step(const ExecutionKey& key, std::span<const double> loss_scales,
                          const StepMeasuring& measuring) {
  key_ = key;
  values_.begin_step();
  measurer_ = nullptr;
  if (measuring.detail == SiteDetail::kEverything) measurer_ = &full_;
  if (measuring.detail == SiteDetail::kCounts) measurer_ = &counts_;
  if (measurer_ != nullptr) measurer_->begin_step(loss_scales, measuring.sample_sums);
}

Measurer* Executor::measurer_of(const Executor* reference, std::span<SiteRecord> records) {
  if (measurer_ == nullptr || records.empty()) return nullptr;
  measurer_->write_to(records, reference == nullptr ? nullptr : &reference->values_);
  return measurer_;
}

void Executor::record_bound(std::string_view value_id, int32_t site, const TensorStats* stats,
                            const Executor* reference, std::span<SiteRecord> records) {
  Measurer* measurer = measurer_of(reference, records);
  if (measurer != nullptr) measurer->record_bound(values_.external(value_id), site, stats);
}

void Executor::run_node(int node, const Executor* reference, std::span<SiteRecord> records) {
  values_.rest_and_wake(node, [this](const Instruction& cast, const Tensor& x, Tensor& y) {
    cast_again(cast, x, y);
  });
  Measurer* measurer = measurer_of(reference, records);
  const NodeState& state = nodes_[static_cast<size_t>(node)];
  for (size_t i = state.begin; i < state.end; ++i) {
    if (rules_.container == Container::kF64) {
      run_instruction<double>(program_.instructions[i], reference, measurer);
    } else {
      run_instruction<float>(program_.instructions[i], reference, measurer);
    }
  }
  if (measurer != nullptr) measurer->after_node(static_cast<size_t>(node));
}

template <typename T>
void Executor::run_instruction(const Instruction& instruction, const Executor* reference,
                               Measurer* measurer) {
  switch (instruction.kind) {
    case InstructionKind::kCast:
      return run_cast<T>(instruction, measurer);
    case InstructionKind::kOp: {
      const bool shares = !instruction.outputs.empty() && values_.is_shared(instruction.outputs[0]);
      return shares ? share_operand(instruction, measurer)
                    : run_op<T>(instruction, reference, measurer);
    }
    case InstructionKind::kObserve:
      if (measurer == nullptr) return;
      return measurer->record_observed(instruction.inputs.at(0), instruction.roundings.at(0));
  }
}

QuantizeSpec Executor::spec_of(const ValueRounding& rounding) const {
  return {.format = rounding.format,
          .rounding = rounding.rounding,
          .key = {key_.seed, key_.stream, rounding.key(), key_.step}};
}

void Executor::cast_again(const Instruction& cast, const Tensor& x, Tensor& y) const {
  store(kernels(), x, y, spec_of(cast.roundings.at(0)));
}

// 1. y = round(x)   2. statistics of that rounding and the error of y, at every consumer's site
template <typename T>
void Executor::run_cast(const Instruction& cast, Measurer* measurer) {
  const ValueRounding& rounding = cast.roundings.at(0);
  const int value = cast.outputs.at(0);
  const Tensor& x = values_.at(cast.inputs.at(0));
  Tensor& y = values_.writable(value);
  RoundingProbe probe;
  if (measurer != nullptr) probe = measurer->before_rounding(value, rounding);
  QuantizeSpec spec = spec_of(rounding);
  spec.counts_only = probe.counts_only;
  if (cast.scaled_cast >= 0) {
    const ScaledCast& how = program_.scaled_casts[static_cast<size_t>(cast.scaled_cast)];
    FactorScales* blocks =
        sums_by_blocks_ && how.to.block != nullptr ? &factor_scales_[value] : nullptr;
    values_.set_scale(value, scaled_casts_.run(kernels(), how, x.as<float>(), y.as<float>(), spec,
                                               probe.stats, blocks));
  } else {
    spec.comparison = &probe.comparison;
    round_factor<T>(cast, x, y, spec, probe.stats);
    probe.weighs = probe.weighs && cast.factor == 1;
  }
  if (probe.stats != nullptr) measurer->after_rounding(value, rounding, probe, &x);
}

// y = round(x factor)
template <typename T>
void Executor::round_factor(const Instruction& cast, const Tensor& x, Tensor& y,
                            const QuantizeSpec& spec, TensorStats* stats) {
  const T* from = x.as<T>().data();
  T* to = y.as<T>().data();
  if (cast.factor == 1) {
    kernels().of<T>().quantize(from, to, x.size(), spec, stats);
    return;
  }
  const auto scale = [&](int64_t begin, int64_t end) {
    kernels().of<T>().scale(from + begin, cast.factor, to + begin, end - begin);
  };
  fill_and_quantize<T>(kernels(), scale, y.as<T>(), spec, stats);
}

void Executor::share_operand(const Instruction& op, Measurer* measurer) {
  const int operand = op.inputs.at(0), value = op.outputs.at(0);
  values_.share(value);
  const ValueRounding& rounding = op.roundings.at(0);
  if (measurer != nullptr && rounding.format != nullptr) {
    measurer->record_copy(operand, value, rounding);
  }
}

// y = round_fp32(sum * ((1/s_a) (1/s_b))), the inverses in FP32, their product exact in double.
void Executor::divide_out_scales(const Instruction& op) {
  double inverse = 1;
  for (const int v : op.inputs) inverse *= static_cast<double>(1 / values_.scale(v));
  if (inverse == 1) return;
  const auto sums = values_.writable(op.outputs.at(0)).as<float>();
  kernels().f32.scale_in_double(sums.data(), inverse, sums.data(),
                                static_cast<int64_t>(sums.size()));
}

void Executor::run_kernels(const Instruction& op, const OpCall& call) {
  const OpDef& def = *nodes_[static_cast<size_t>(op.node)].op;
  if (op.sum_block == 0) return def.run(call);
  run_block_products(call, def.sums.axes, op.sum_block, factor_scales_.at(op.inputs[0]),
                     factor_scales_.at(op.inputs[1]), block_buffers_);
}

// 1. the op's kernels   2. the accumulator's statistics   3. each output rounded in place, measured
// An op that is one product may do 3 in 1, if nothing reads the sums in between.
template <typename T>
void Executor::run_op(const Instruction& op, const Executor* reference, Measurer* measurer) {
  std::vector<const Tensor*> inputs;
  std::vector<Tensor*> outputs;
  for (int v : op.inputs) inputs.push_back(&values_.at(v));
  for (int v : op.outputs) outputs.push_back(&values_.writable(v));
  OpProbe probe;
  if (measurer != nullptr) probe = measurer->before_op(op);
  const auto node = static_cast<size_t>(op.node);
  OpCall call{.node = graph_.nodes[node],
              .inputs = inputs,
              .outputs = outputs,
              .kernels = kernels(),
              .gemm_accumulator = *op.gemm_accumulator,
              .reduce_accumulator = *op.reduce_accumulator,
              .factor_formats = op.factor_formats,
              .events = probe.events.empty() ? nullptr : probe.events.data()};
  call.random = {key_.seed, key_.step, static_cast<uint32_t>(op.node), nodes_[node].given_mask};
  if (call.random.given == nullptr && reference != nullptr) {
    call.random.given = reference->mask_for(node, key_);
  }
  if (!op.roundings.empty() && op.roundings[0].format != nullptr) {
    call.inner = spec_of(op.roundings[0]);
  }
  call.inner_formats = op.inner_formats;
  call.rounds_dropout_scale = program_.rounds_dropout_scale;
  call.cpu_threads = program_.cpu_threads;
  call.flash_kernel = program_.flash_kernel;
  call.decides_itself = nodes_[node].op->meaning.decides && rules_.decides_itself &&
                        bool_attribute(call.node, "own", false);
  call.decisions = probe.decisions;
  if (probe.samples_sums) call.health = &probe.health;
  // Runs after the sums of products, before anything is added to them.
  bool sums_pending = !probe.events.empty() || values_.product_of_scales(op.inputs) != 1;
  const auto finish_sums = [&](bool is_output) {
    if (measurer != nullptr) measurer->record_sums(op, probe, is_output);
    divide_out_scales(op);
    sums_pending = false;
  };
  if (sums_pending) call.sums_ready = [&] { finish_sums(/*is_output=*/false); };
  OutputStep first_step;
  if (!outputs.empty()) first_step = output_step(op, 0, measurer);
  OutputRounding first_rounding{first_step.how};
  const bool sums_are_read = sums_pending || probe.samples_sums || first_step.probe.keeps();
  first_rounding.how.spec.comparison = &first_step.probe.comparison;
  if (first_step.how.spec.format != nullptr && !sums_are_read) {
    call.output_rounding = &first_rounding;
  }
  FillRange fill;
  call.output_fill = &fill;
  run_kernels(op, call);
  const bool has_independent_elements = static_cast<bool>(fill);
  if (fill && (first_step.how.spec.format == nullptr || first_step.probe.keeps())) {
    std::exchange(fill, nullptr)(0, outputs[0]->size());
  }
  if (call.kernels.take_device_work != nullptr) note_device_work(op.node);
  if (probe.sums_again && !has_independent_elements && op.sum_block == 0)
    probe.other_sums = other_sums(*nodes_[node].op, call);
  if (measurer != nullptr) measurer->after_op(op, probe);
  if (sums_pending) finish_sums(/*is_output=*/true);

  for (size_t o = 0; o < outputs.size(); ++o) {
    OutputStep step = o == 0 ? first_step : output_step(op, o, measurer);
    const bool is_rounded = o == 0 && first_rounding.done;
    finish_output<T>(op, o, step, is_rounded, o == 0 && fill ? &fill : nullptr, measurer);
  }
}

Executor::OutputStep Executor::output_step(const Instruction& op, size_t output,
                                           const Measurer* measurer) const {
  OutputStep step;
  const ValueRounding& rounding = op.roundings.at(output);
  if (rounding.format == nullptr) return step;
  if (measurer != nullptr) step.probe = measurer->before_rounding(op.outputs[output], rounding);
  step.how.stats = step.probe.stats;
  // Without statistics, a rounding that changes nothing is skipped.
  if (step.how.stats == nullptr && changes_nothing(*rounding.format, rules_.container)) return step;
  step.how.spec = spec_of(rounding);
  step.how.spec.counts_only = step.probe.counts_only;
  return step;
}

// `is_rounded`: by the op. `fill`, if not null: writes the output.
template <typename T>
void Executor::finish_output(const Instruction& op, size_t output, OutputStep& step,
                             bool is_rounded, const FillRange* fill, Measurer* measurer) {
  if (step.how.spec.format == nullptr) return;
  const int value = op.outputs[output];
  Tensor& result = values_.writable(value);
  const Tensor before = step.probe.keeps() ? result : Tensor();
  if (!is_rounded) {
    QuantizeSpec spec = step.how.spec;
    spec.comparison = &step.probe.comparison;
    T* y = result.as<T>().data();
    if (fill != nullptr) {
      fill_and_quantize<T>(kernels(), *fill, result.as<T>(), spec, step.how.stats);
    } else {
      kernels().of<T>().quantize(y, y, result.size(), spec, step.how.stats);
    }
  }
  if (step.how.stats != nullptr) {
    measurer->after_rounding(value, op.roundings[output], step.probe, &before);
  }
}

}  // namespace lockstep
