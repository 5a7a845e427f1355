// Records with all statistics: errors, sums of products, effects on the loss.
#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string_view>

#include "emulation/kernels/quantize.h"
#include "src/execute/addition.h"
#include "src/execute/measurer.h"
#include "src/execute/other_sums.h"
#include "src/graph/op.h"

namespace lockstep {
namespace {

// A loss scale that has fallen to zero leaves nothing to compare.
bool is_comparable(double scale) {
  return scale > 0 && std::isfinite(scale);
}

// By site: the backward pass of its node.
std::vector<size_t> passes_of(const Graph& graph, const SiteTable& sites) {
  std::map<std::string_view, size_t> pass_of_node;
  for (const Node& node : graph.nodes) pass_of_node[node.id] = static_cast<size_t>(node.pass);
  std::vector<size_t> out;
  for (const Site& site : sites.sites) {
    const auto found = pass_of_node.find(site.node);
    out.push_back(found == pass_of_node.end() ? 0 : found->second);
  }
  return out;
}

// What the rounded sums `y` of a buffer's new value took of what was added to the old one.
template <typename T>
UpdateStats addition_to(const Tensor& old, const Tensor& before, const Tensor& y) {
  const T *stored = old.as<T>().data(), *sums = before.as<T>().data();
  const auto buffer = [&](int64_t i) { return static_cast<double>(stored[i]); };
  const auto added = [&](int64_t i) { return static_cast<double>(sums[i]) - buffer(i); };
  return measure_addition(y.size(), buffer, added, y.as<T>().data());
}

}  // namespace

int32_t sum_site(const SiteTable& sites, const Node& node) {
  const OpDef& op = find_op(node.op);
  return op.sums.of_products && op.sums.are_shown ? sites.find(node.id, Point::kAccumulator, 0)
                                                  : -1;
}

FullMeasurer::FullMeasurer(const Graph& graph, const SiteTable& sites, const Program& program,
                           const ValueStore& values, const ExecutionRules& rules)
    : Measurer(program, values, rules),
      sites_(sites),
      pass_of_(passes_of(graph, sites)),
      adjoints_(graph, sites) {
  for (const Node& node : graph.nodes) {
    sum_site_.push_back(sum_site(sites, node));
    decision_site_.push_back(
        find_op(node.op).meaning.decides ? sites.find(node.id, Point::kOperand, 0) : -1);
  }
  sums_otherwise_.assign(graph.nodes.size(), false);
  for (const Instruction& instruction : program.instructions) {
    const auto node = static_cast<size_t>(instruction.node);
    if (may_sum_narrowly(instruction, graph.nodes[node])) sums_otherwise_[node] = true;
  }
}

void FullMeasurer::begin_step(std::span<const double> loss_scales, bool sample_sums) {
  Measurer::begin_step(loss_scales, sample_sums);
  error_site_.assign(program_.values.size(), -1);
  loss_scales_.assign(loss_scales.begin(), loss_scales.end());
  sample_sums_ = sample_sums && rules_.container == Container::kF32;
  errors_.clear();
}

double FullMeasurer::site_scale(int32_t site) const {
  if (!sites_.sites[static_cast<size_t>(site)].scaled) return 1;
  const auto found = program_.site_factors.find(site);
  const double scale = loss_scales_.at(pass_of_[static_cast<size_t>(site)]);
  return found == program_.site_factors.end() ? scale : scale * found->second;
}

double FullMeasurer::record_scale(int value, const ValueRounding& rounding) const {
  return site_scale(rounding.sites.front()) * static_cast<double>(values_.scale(value));
}

ReferenceComparison FullMeasurer::comparison_of(int value, const ValueRounding& rounding) const {
  const double scale = record_scale(value, rounding);
  if (reference_ == nullptr || !is_comparable(scale)) return {};
  const ProgramValue& mine = program_.values[static_cast<size_t>(value)];
  const Tensor& expected = reference_->of(mine.graph_value);
  if (expected.size() != element_count(mine.type.shape)) {
    throw std::logic_error("the reference's '" + mine.graph_value + "' has another shape");
  }
  return {.reference = expected.as<float>().data(), .scale = scale, .format = rounding.format};
}

ErrorStats FullMeasurer::error_of(int value, const TensorStats& stats, const Format& format,
                                  double scale) const {
  if (reference_ == nullptr) return error_of_reference(stats);
  if (!is_comparable(scale)) return {};
  const Tensor& mine = values_.at(value);
  const auto ref =
      reference_->of(program_.values[static_cast<size_t>(value)].graph_value).as<float>();
  return rules_.container == Container::kF64
             ? compare<double>(rules_.kernels(), mine.as<double>(), ref, scale, format)
             : compare<float>(rules_.kernels(), mine.as<float>(), ref, scale, format);
}

void FullMeasurer::finish(int value, const ValueRounding& rounding,
                          const ReferenceComparison& compared) {
  const int32_t first = rounding.sites.front();
  SiteRecord& out = record(first);
  out.measured = true;
  out.scale = record_scale(value, rounding);
  int32_t& known = error_site_[static_cast<size_t>(value)];
  if (compared.done) {
    out.error = compared.error;
  } else if (known >= 0 && record(known).scale == out.scale && reference_ != nullptr) {
    out.error = record(known).error;
  } else {
    out.error = error_of(value, out.stats, *rounding.format, out.scale);
  }
  known = first;
  if (tap_ != nullptr) tap_->take(rounding.sites, values_.at(value), *rounding.format);
  for (size_t i = 1; i < rounding.sites.size(); ++i) record(rounding.sites[i]) = out;
}

void FullMeasurer::record_bound(int value, int32_t site, const TensorStats* stats) {
  const Format* format = program_.values[static_cast<size_t>(value)].format;
  const ValueRounding rounding{.format = format, .sites = {site}};
  ReferenceComparison compared = comparison_of(value, rounding);
  record(site).stats = stats != nullptr ? *stats : observed(value, *format, &compared);
  note_exact(value, rounding);
  finish(value, rounding, compared);
}

RoundingProbe FullMeasurer::before_rounding(int value, const ValueRounding& rounding) const {
  RoundingProbe probe;
  if (rounding.sites.empty()) return probe;
  probe.stats = &records_[static_cast<size_t>(rounding.sites.front())].stats;
  probe.weighs =
      sample_sums_ && reference_ != nullptr && !rounding.format->is_fp32() &&
      std::ranges::any_of(rounding.sites, [&](int32_t site) { return has_adjoint(site); });
  probe.old = values_.old_of(value);
  probe.comparison = comparison_of(value, rounding);
  return probe;
}

void FullMeasurer::after_rounding(int value, const ValueRounding& rounding,
                                  const RoundingProbe& probe, const Tensor* before) {
  note_exact(value, rounding);
  if (probe.weighs) keep_errors(value, rounding, *before);
  finish(value, rounding, probe.comparison);
  if (probe.old < 0) return;
  const Tensor &old = values_.at(probe.old), &y = values_.at(value);
  record(rounding.sites.front()).update = {true, rules_.container == Container::kF64
                                                     ? addition_to<double>(old, *before, y)
                                                     : addition_to<float>(old, *before, y)};
}

void FullMeasurer::record_observed(int value, const ValueRounding& rounding) {
  if (rounding.sites.empty()) return;
  ReferenceComparison compared;
  if (error_site_[static_cast<size_t>(value)] < 0) compared = comparison_of(value, rounding);
  set_unchanged(value, rounding, &compared);
  finish(value, rounding, compared);
}

void FullMeasurer::record_copy(int operand, int value, const ValueRounding& rounding) {
  if (rounding.sites.empty()) return;
  const auto from = static_cast<size_t>(operand), to = static_cast<size_t>(value);
  stats_site_[to] = stats_site_[from];
  error_site_[to] = error_site_[from];
  // A lane's copies are also the reference's, unless its formats differ in between.
  if (reference_ != nullptr && !reference_->share_memory(program_.values[from].graph_value,
                                                         program_.values[to].graph_value)) {
    error_site_[to] = -1;
  }
  record_observed(value, rounding);
}

OpProbe FullMeasurer::before_op(const Instruction& op) const {
  OpProbe probe;
  const auto node = static_cast<size_t>(op.node);
  if (op.accumulator_site >= 0) {
    const Shape& shape = program_.values[static_cast<size_t>(op.outputs.at(0))].type.shape;
    probe.events.assign(static_cast<size_t>(element_count(shape)), 0);
  }
  probe.samples_sums = sample_sums_ && sum_site_[node] >= 0;
  probe.sums_again = sample_sums_ && sums_otherwise_[node];
  const int32_t decided = decision_site_[node];
  if (decided >= 0) probe.decisions = &records_[static_cast<size_t>(decided)].decisions;
  return probe;
}

void FullMeasurer::record_sums(const Instruction& op, const OpProbe& probe, bool is_output) {
  if (probe.events.empty()) return;
  const int value = op.outputs.at(0);
  const Format& format = *op.gemm_accumulator->format;
  SiteRecord& out = record(op.accumulator_site);
  out.measured = true;
  out.scale = site_scale(op.accumulator_site) * values_.product_of_scales(op.inputs);
  out.stats = observed(value, format, nullptr);
  out.error = is_output ? error_of(value, out.stats, format, out.scale) : ErrorStats{};
  if (tap_ != nullptr) tap_->take({&op.accumulator_site, 1}, values_.at(value), format);
  TensorStats& stats = out.stats;
  stats.to_zero = stats.to_infinity = stats.inexact = stats.nan = 0;
  for (const uint8_t event : probe.events) {
    stats.to_zero += (event & kStepToZero) != 0;
    stats.to_infinity += (event & kStepToInfinity) != 0;
    stats.inexact += (event & kStepInexact) != 0;
    stats.nan += (event & kStepNan) != 0;
  }
}

void FullMeasurer::after_op(const Instruction& op, const OpProbe& probe) {
  for (size_t k = 0; k < probe.other_sums.size(); ++k) {
    const std::vector<int32_t>& sites = op.roundings.at(k).sites;
    if (probe.other_sums[k].samples == 0 || sites.empty()) continue;
    AccumulatorHealth& health = record(sites.front()).health = probe.other_sums[k];
    health.divide_by(site_scale(sites.front()));
  }
  if (!probe.samples_sums) return;
  const int32_t site = sum_site_[static_cast<size_t>(op.node)];
  AccumulatorHealth& health = record(site).health = probe.health;
  health.divide_by(site_scale(site) * values_.product_of_scales(op.inputs));
}

void FullMeasurer::keep_errors(int value, const ValueRounding& rounding, const Tensor& before) {
  if (record(rounding.sites.front()).stats.inexact == 0) return;
  const auto errors = std::make_shared<const RoundingErrors>(rounding_errors(
      before.as<float>(), values_.at(value).as<float>(), *rounding.format, values_.scale(value)));
  for (const int32_t site : rounding.sites) {
    if (has_adjoint(site)) errors_[site] = errors;
  }
}

// The reference has run the node, and its loss scale is 1.
void FullMeasurer::after_node(size_t node) {
  if (errors_.empty() || reference_ == nullptr) return;
  for (const int32_t site : adjoints_.after_node(node)) {
    const auto kept = errors_.find(site);
    if (kept == errors_.end()) continue;
    const Tensor& derivative = reference_->of(adjoints_.of_site(site));
    record(site).effect = loss_effect(*kept->second, derivative.as<float>());
    errors_.erase(kept);
  }
}

}  // namespace lockstep
