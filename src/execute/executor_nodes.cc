// Runs the instructions of a node, one function per kind, and measures what they compute.
#include <cmath>
#include <stdexcept>
#include <type_traits>
#include <utility>

#include "emulation/kernels/quantize.h"
#include "src/execute/addition.h"
#include "src/execute/executor.h"

namespace lockstep {
namespace {

// A loss scale that has fallen to zero leaves nothing to compare.
bool is_comparable(double scale) {
  return scale > 0 && std::isfinite(scale);
}

}  // namespace

void Executor::run_node(int node, const Executor* reference, std::span<SiteRecord> records) {
  rest_and_wake(node);
  const auto [begin, end] = node_range_[static_cast<size_t>(node)];
  for (size_t i = begin; i < end; ++i) {
    if (container_ == Container::kF64) {
      run_instruction<double>(program_.instructions[i], reference, records);
    } else {
      run_instruction<float>(program_.instructions[i], reference, records);
    }
  }
  if (!errors_.empty() && reference != nullptr) {
    weigh_errors(static_cast<size_t>(node), *reference, records);
  }
}

void Executor::keep_errors(const ValueRounding& rounding, std::span<const float> before,
                           std::span<const float> after, float scale,
                           std::span<SiteRecord> records) {
  if (records[static_cast<size_t>(rounding.sites.front())].stats.inexact == 0) return;
  std::shared_ptr<const RoundingErrors> errors;
  for (const int32_t site : rounding.sites) {
    if (adjoints_.of_site(site).empty()) continue;
    if (errors == nullptr) {
      errors =
          std::make_shared<RoundingErrors>(rounding_errors(before, after, *rounding.format, scale));
    }
    errors_[site] = errors;
  }
}

// The reference has run the node, and its loss scale is 1.
void Executor::weigh_errors(size_t node, const Executor& reference, std::span<SiteRecord> records) {
  for (const int32_t site : adjoints_.after_node(node)) {
    const auto kept = errors_.find(site);
    if (kept == errors_.end()) continue;
    const Tensor& derivative = reference.value(adjoints_.of_site(site));
    records[static_cast<size_t>(site)].effect = loss_effect(*kept->second, derivative.as<float>());
    errors_.erase(kept);
  }
}

void Executor::record_bound(std::string_view value_id, int32_t site, const TensorStats* stats,
                            const Executor* reference, std::span<SiteRecord> records) {
  const int value = program_.external.at(std::string(value_id));
  if (container_ == Container::kF64) {
    record_external<double>(value, site, stats, reference, records);
  } else {
    record_external<float>(value, site, stats, reference, records);
  }
}

template <typename T>
void Executor::record_external(int value, int32_t site, const TensorStats* stats,
                               const Executor* reference, std::span<SiteRecord> records) {
  const Format& format = *program_.values[static_cast<size_t>(value)].format;
  if (counts_only_ && (stats == nullptr || changes_nothing(format))) return;
  TensorStats& mine = records[static_cast<size_t>(site)].stats;
  const ValueRounding rounding{.format = &format, .sites = {site}};
  ReferenceComparison compared = comparison_of(value, rounding, reference);
  mine =
      stats != nullptr ? *stats : observe<T>(kernels(), tensor(value).as<T>(), format, &compared);
  if (counts_only_) return finish_counts(rounding, records);
  if (mine.inexact == 0) measured_[static_cast<size_t>(value)].stats_site = site;
  finish_record<T>(value, rounding, reference, records, compared);
}

template <typename T>
void Executor::run_instruction(const Instruction& instruction, const Executor* reference,
                               std::span<SiteRecord> records) {
  switch (instruction.kind) {
    case InstructionKind::kCast:
      return run_cast<T>(instruction, reference, records);
    case InstructionKind::kOp:
      return is_shared(instruction) ? share_operand<T>(instruction, reference, records)
                                    : run_op<T>(instruction, reference, records);
    case InstructionKind::kObserve:
      return run_observe<T>(instruction, reference, records);
  }
}

template <typename T>
ErrorStats Executor::error_of(int value, const TensorStats& stats, const Format& format,
                              double scale, const Executor* reference) const {
  if (reference == nullptr) return error_of_reference(stats);
  if (!is_comparable(scale)) return {};
  const Tensor& ref = reference->value(program_.values[value].graph_value);
  return compare<T>(kernels(), tensor(value).as<T>(), ref.as<float>(), scale, format);
}

double Executor::record_scale(int value, const ValueRounding& rounding) const {
  return site_scale(rounding.sites.front()) * value_scale_[value];
}

ReferenceComparison Executor::comparison_of(int value, const ValueRounding& rounding,
                                            const Executor* reference) const {
  const double scale = record_scale(value, rounding);
  if (reference == nullptr || !is_comparable(scale)) return {};
  const Tensor& expected = reference->value(program_.values[value].graph_value);
  if (expected.size() != element_count(program_.values[value].type.shape)) {
    throw std::logic_error("the reference's '" + program_.values[value].graph_value +
                           "' has another shape");
  }
  return {.reference = expected.as<float>().data(), .scale = scale, .format = rounding.format};
}

template <typename T>
void Executor::finish_record(int value, const ValueRounding& rounding, const Executor* reference,
                             std::span<SiteRecord> records, const ReferenceComparison& compared) {
  const int32_t first = rounding.sites.front();
  SiteRecord& record = records[first];
  record.measured = true;
  record.scale = record_scale(value, rounding);
  const int32_t known = measured_[value].error_site;
  if (compared.done) {
    record.error = compared.error;
  } else if (known >= 0 && records[known].scale == record.scale && reference != nullptr) {
    record.error = records[known].error;
  } else {
    record.error = error_of<T>(value, record.stats, *rounding.format, record.scale, reference);
  }
  measured_[value].error_site = first;
  if (tap_ != nullptr) tap_->take(rounding.sites, tensor(value), *rounding.format);
  for (size_t i = 1; i < rounding.sites.size(); ++i) records[rounding.sites[i]] = record;
}

bool Executor::changes_nothing(const Format& format) const {
  return format.is_fp64() || (format.is_fp32() && container_ == Container::kF32);
}

bool Executor::records_rounding(const ValueRounding& rounding,
                                std::span<SiteRecord> records) const {
  if (records.empty() || rounding.sites.empty()) return false;
  return !counts_only_ || !changes_nothing(*rounding.format);
}

void Executor::finish_counts(const ValueRounding& rounding, std::span<SiteRecord> records) const {
  SiteRecord counted;
  counted.counted = true;
  counted.stats = records[static_cast<size_t>(rounding.sites.front())].stats.counts();
  for (const int32_t site : rounding.sites) records[static_cast<size_t>(site)] = counted;
}

// A value is not read again if an observer's statistics of it already exist: it was produced by an
// exact rounding (before == after), or observed at an earlier site.
template <typename T>
void Executor::measure_unchanged(int value, const ValueRounding& rounding,
                                 const Executor* reference, std::span<SiteRecord> records) {
  const int32_t site = rounding.sites.at(0);
  const auto [known, known_error] = measured_[value];
  ReferenceComparison compared;
  if (known_error < 0 && !counts_only_) compared = comparison_of(value, rounding, reference);
  records[site].stats =
      known >= 0 ? records[known].stats
                 : observe<T>(kernels(), tensor(value).as<T>(), *rounding.format, &compared);
  measured_[value].stats_site = site;
  if (counts_only_) return finish_counts(rounding, records);
  finish_record<T>(value, rounding, reference, records, compared);
}

// No element is written, because other lanes may be reading the operand.
template <typename T>
void Executor::share_operand(const Instruction& instruction, const Executor* reference,
                             std::span<SiteRecord> records) {
  const int operand = instruction.inputs.at(0), value = instruction.outputs.at(0);
  const int original = plan_.memory_of(value);
  tensor(original);  // throws unless it is there
  place_at(value, values_[static_cast<size_t>(original)].raw());
  const ValueRounding& rounding = instruction.roundings.at(0);
  if (rounding.format == nullptr || !records_rounding(rounding, records)) return;
  measured_[value] = measured_[operand];
  // A lane's copies are also the reference's, unless its formats differ in between.
  if (reference != nullptr && !reference->share_memory(program_.values[operand].graph_value,
                                                       program_.values[value].graph_value)) {
    measured_[value].error_site = -1;
  }
  measure_unchanged<T>(value, rounding, reference, records);
}

QuantizeSpec Executor::cast_spec(const Instruction& cast) const {
  const ValueRounding& rounding = cast.roundings.at(0);
  return {.format = rounding.format,
          .rounding = rounding.rounding,
          .key = {key_.seed, key_.stream, rounding.key(), key_.step}};
}

template <typename T>
void Executor::cast_again(const ValuePlan::Rest& rest) {
  const auto value = static_cast<size_t>(rest.value);
  const Tensor& operand = tensor(rest.operand);
  kernels().of<T>().quantize(operand.as<T>().data(), values_[value].as<T>().data(), operand.size(),
                             cast_spec(program_.instructions[static_cast<size_t>(cast_of_[value])]),
                             nullptr);
}
template void Executor::cast_again<float>(const ValuePlan::Rest&);
template void Executor::cast_again<double>(const ValuePlan::Rest&);

// 1. y = round(x)   2. statistics of that rounding and the error of y, at every consumer's site
template <typename T>
void Executor::run_cast(const Instruction& instruction, const Executor* reference,
                        std::span<SiteRecord> records) {
  const ValueRounding& rounding = instruction.roundings.at(0);
  const bool measure = records_rounding(rounding, records);
  const Tensor& x = tensor(instruction.inputs.at(0));
  Tensor& y = writable(instruction.outputs.at(0));
  const uint32_t site = rounding.key();
  QuantizeSpec spec = cast_spec(instruction);
  TensorStats* stats = measure ? &records[site].stats : nullptr;
  const int value = instruction.outputs[0];
  const bool weighs = measure && !counts_only_ && sample_sums_ && reference != nullptr;
  ReferenceComparison compared;
  if (instruction.scaled_cast >= 0) {
    const ScaledCast& cast = program_.scaled_casts[static_cast<size_t>(instruction.scaled_cast)];
    const float scale = run_scaled_cast(cast, x.as<float>(), y.as<float>(), spec.key, stats);
    value_scale_[value] = scale;
    if (weighs) keep_errors(rounding, x.as<float>(), y.as<float>(), scale, records);
  } else {
    const T* source = x.as<T>().data();
    T* to = y.as<T>().data();
    if (measure && !counts_only_) compared = comparison_of(value, rounding, reference);
    spec.counts_only = counts_only_;
    spec.comparison = &compared;
    if (instruction.factor != 1) {
      const auto scale = [&](int64_t begin, int64_t end) {
        kernels().of<T>().scale(source + begin, instruction.factor, to + begin, end - begin);
      };
      fill_and_quantize<T>(kernels(), scale, y.as<T>(), spec, stats);
    } else {
      kernels().of<T>().quantize(source, to, x.size(), spec, stats);
    }
    if constexpr (std::is_same_v<T, float>) {
      if (weighs && instruction.factor == 1) {
        keep_errors(rounding, x.as<float>(), y.as<float>(), /*scale=*/1, records);
      }
    }
  }
  if (!measure) return;
  if (records[site].stats.inexact == 0) measured_[value].stats_site = static_cast<int32_t>(site);
  if (counts_only_) return finish_counts(rounding, records);
  finish_record<T>(value, rounding, reference, records, compared);
}

const Tensor* Executor::mask_for(size_t node, const ExecutionKey& key) const {
  const bool is_same = key.seed == key_.seed && key.step == key_.step;
  return is_same && mask_of_[node] >= 0 ? &tensor(mask_of_[node]) : nullptr;
}

// 1. the op's kernels   2. the accumulator's statistics   3. each output rounded in place, measured
// An op that is one product may do 3 in 1, if nothing reads the sums in between.
template <typename T>
void Executor::run_op(const Instruction& instruction, const Executor* reference,
                      std::span<SiteRecord> records) {
  std::vector<const Tensor*> inputs;
  std::vector<Tensor*> outputs;
  for (int v : instruction.inputs) inputs.push_back(&tensor(v));
  for (int v : instruction.outputs) outputs.push_back(&writable(v));
  const bool measure = !records.empty() && !counts_only_;
  std::vector<uint8_t> events;
  if (measure && instruction.accumulator_site >= 0) {
    events.assign(static_cast<size_t>(outputs[0]->size()), 0);
  }
  const KernelSet& set = kernels();
  const size_t node = static_cast<size_t>(instruction.node);
  OpCall call{graph_.nodes[node],
              inputs,
              outputs,
              set,
              *instruction.gemm_accumulator,
              *instruction.reduce_accumulator,
              instruction.factor_formats,
              events.empty() ? nullptr : events.data()};
  call.random = {key_.seed, key_.step, static_cast<uint32_t>(instruction.node), given_masks_[node]};
  if (call.random.given == nullptr && reference != nullptr) {
    call.random.given = reference->mask_for(node, key_);
  }
  if (!instruction.roundings.empty() && instruction.roundings[0].format != nullptr) {
    const ValueRounding& first = instruction.roundings[0];
    call.inner = {first.format, first.rounding, {key_.seed, key_.stream, first.key(), key_.step}};
  }
  call.inner_formats = instruction.inner_formats;
  call.rounds_dropout_scale = program_.rounds_dropout_scale;
  call.cpu_threads = program_.cpu_threads;
  call.flash_kernel = program_.flash_kernel;
  const int32_t sum_site = sum_site_[node];
  AccumulatorHealth sampled;
  if (measure && sample_sums_ && sum_site >= 0) call.health = &sampled;
  const int32_t decision_site = decision_site_[node];
  if (decision_site >= 0) {
    call.decides_itself = decides_itself_ && bool_attribute(call.node, "own", false);
    if (measure) call.decisions = &records[static_cast<size_t>(decision_site)].decisions;
  }
  // Runs after the sums of products, before anything is added to them.
  bool sums_pending = !events.empty() || scale_of_sums(instruction) != 1;
  const auto finish_sums = [&](bool is_output) {
    if (!events.empty()) {
      measure_accumulator<T>(instruction, events, is_output, reference, records);
    }
    divide_out_scales(instruction);
    sums_pending = false;
  };
  if (sums_pending) call.sums_ready = [&] { finish_sums(/*is_output=*/false); };
  OutputStep first_step;
  if (!outputs.empty()) first_step = output_step(instruction, 0, reference, records);
  OutputRounding first_rounding{first_step.how};
  const bool sums_are_read = sums_pending || call.health != nullptr || first_step.keeps();
  first_rounding.how.spec.comparison = &first_step.comparison;
  if (first_step.how.spec.format != nullptr && !sums_are_read) {
    call.output_rounding = &first_rounding;
  }
  FillRange fill;
  call.output_fill = &fill;
  ops_[node]->run(call);
  if (fill && (first_step.how.spec.format == nullptr || first_step.keeps())) {
    std::exchange(fill, nullptr)(0, outputs[0]->size());
  }
  if (set.take_device_work != nullptr) note_device_work(instruction.node);
  if (call.health != nullptr) {
    sampled.divide_by(site_scale(sum_site) * scale_of_sums(instruction));
    records[sum_site].health = sampled;
  }
  if (sums_pending) finish_sums(/*is_output=*/true);

  for (size_t o = 0; o < outputs.size(); ++o) {
    OutputStep step = o == 0 ? first_step : output_step(instruction, o, reference, records);
    const bool is_rounded = o == 0 && first_rounding.done;
    finish_output<T>(instruction, o, step, is_rounded, o == 0 && fill ? &fill : nullptr, reference,
                     records);
  }
}

Executor::OutputStep Executor::output_step(const Instruction& instruction, size_t output,
                                           const Executor* reference,
                                           std::span<SiteRecord> records) const {
  OutputStep step;
  const ValueRounding& rounding = instruction.roundings.at(output);
  if (rounding.format == nullptr) return step;
  step.measured = records_rounding(rounding, records);
  // Without statistics, a rounding that changes nothing is skipped.
  if (!step.measured && changes_nothing(*rounding.format)) return step;
  const uint32_t site = rounding.key();
  step.how.spec = {.format = rounding.format,
                   .rounding = rounding.rounding,
                   .key = {key_.seed, key_.stream, site, key_.step},
                   .counts_only = counts_only_};
  if (!step.measured) return step;
  step.how.stats = &records[site].stats;
  if (counts_only_) return step;
  step.weighs = sample_sums_ && reference != nullptr && !rounding.format->is_fp32() &&
                !adjoints_.of_site(rounding.sites[0]).empty();
  step.old = old_of_[static_cast<size_t>(instruction.outputs[output])];
  step.comparison = comparison_of(instruction.outputs[output], rounding, reference);
  return step;
}

// `is_rounded`: by the op. `fill`, if not null: writes the output.
template <typename T>
void Executor::finish_output(const Instruction& instruction, size_t output, OutputStep& step,
                             bool is_rounded, const FillRange* fill, const Executor* reference,
                             std::span<SiteRecord> records) {
  if (step.how.spec.format == nullptr) return;
  const ValueRounding& rounding = instruction.roundings[output];
  const int value = instruction.outputs[output];
  Tensor& result = writable(value);
  T* y = result.as<T>().data();
  const std::vector<T> before(y, step.keeps() ? y + result.size() : y);
  if (!is_rounded) {
    QuantizeSpec spec = step.how.spec;
    spec.comparison = &step.comparison;
    if (fill != nullptr) {
      fill_and_quantize<T>(kernels(), *fill, result.as<T>(), spec, step.how.stats);
    } else {
      kernels().of<T>().quantize(y, y, result.size(), spec, step.how.stats);
    }
  }
  if (!step.measured) return;
  const uint32_t site = rounding.key();
  if (records[site].stats.inexact == 0) measured_[value].stats_site = static_cast<int32_t>(site);
  if (counts_only_) return finish_counts(rounding, records);
  if constexpr (std::is_same_v<T, float>) {
    if (step.weighs) keep_errors(rounding, before, result.as<float>(), /*scale=*/1, records);
  }
  finish_record<T>(value, rounding, reference, records, step.comparison);
  if (step.old < 0) return;
  const T* stored = tensor(step.old).as<T>().data();
  const auto buffer = [&](int64_t i) { return static_cast<double>(stored[i]); };
  const auto added = [&](int64_t i) {
    return static_cast<double>(before[static_cast<size_t>(i)]) - buffer(i);
  };
  records[site].update = {true, measure_addition(result.size(), buffer, added, y)};
}

// Histogram, moments and hash are those of the final sums. The counts (overflow and the like) are
// of outputs with such an event anywhere in their chain. Sums that are not yet the op's output (a
// bias is still added) have no counterpart in the reference: compared stays 0.
template <typename T>
void Executor::measure_accumulator(const Instruction& instruction, std::span<const uint8_t> events,
                                   bool is_output, const Executor* reference,
                                   std::span<SiteRecord> records) {
  const int value = instruction.outputs.at(0);
  const Format& format = *instruction.gemm_accumulator->format;
  SiteRecord& record = records[instruction.accumulator_site];
  record.measured = true;
  record.scale = site_scale(instruction.accumulator_site) * scale_of_sums(instruction);
  record.stats = observe<T>(kernels(), tensor(value).as<T>(), format);
  record.error =
      is_output ? error_of<T>(value, record.stats, format, record.scale, reference) : ErrorStats{};
  if (tap_ != nullptr) tap_->take({&instruction.accumulator_site, 1}, tensor(value), format);
  TensorStats& stats = record.stats;
  stats.to_zero = stats.to_infinity = stats.inexact = stats.nan = 0;
  for (const uint8_t event : events) {
    stats.to_zero += (event & kStepToZero) != 0;
    stats.to_infinity += (event & kStepToInfinity) != 0;
    stats.inexact += (event & kStepInexact) != 0;
    stats.nan += (event & kStepNan) != 0;
  }
}

template <typename T>
void Executor::run_observe(const Instruction& instruction, const Executor* reference,
                           std::span<SiteRecord> records) {
  const ValueRounding& rounding = instruction.roundings.at(0);
  if (counts_only_ || records.empty() || rounding.sites.empty()) return;
  measure_unchanged<T>(instruction.inputs.at(0), rounding, reference, records);
}

}  // namespace lockstep
