// What both kinds of measurers do, and the counting one.
#include "src/execute/measurer.h"

#include "emulation/kernels/quantize.h"
#include "src/execute/storage.h"

namespace lockstep {

Measurer::Measurer(const Program& program, const ValueStore& values, const ExecutionRules& rules)
    : program_(program), values_(values), rules_(rules) {}

void Measurer::begin_step(std::span<const double>, bool) {
  stats_site_.assign(program_.values.size(), -1);
}

OpProbe Measurer::before_op(const Instruction&) const {
  return {};
}

TensorStats Measurer::observed(int value, const Format& format,
                               ReferenceComparison* comparison) const {
  const Tensor& values = values_.at(value);
  return rules_.container == Container::kF64
             ? observe<double>(rules_.kernels(), values.as<double>(), format, comparison)
             : observe<float>(rules_.kernels(), values.as<float>(), format, comparison);
}

void Measurer::set_unchanged(int value, const ValueRounding& rounding,
                             ReferenceComparison* comparison) {
  const int32_t site = rounding.sites.front();
  int32_t& known = stats_site_[static_cast<size_t>(value)];
  record(site).stats =
      known >= 0 ? record(known).stats : observed(value, *rounding.format, comparison);
  known = site;
}

void Measurer::note_exact(int value, const ValueRounding& rounding) {
  const int32_t site = rounding.sites.front();
  if (record(site).stats.inexact == 0) stats_site_[static_cast<size_t>(value)] = site;
}

bool CountMeasurer::counts(const ValueRounding& rounding) const {
  return !rounding.sites.empty() && !changes_nothing(*rounding.format, rules_.container);
}

void CountMeasurer::finish(std::span<const int32_t> sites) {
  SiteRecord counted;
  counted.counted = true;
  counted.stats = record(sites.front()).stats.counts();
  for (const int32_t site : sites) record(site) = counted;
}

void CountMeasurer::record_bound(int value, int32_t site, const TensorStats* stats) {
  const Format& format = *program_.values[static_cast<size_t>(value)].format;
  if (stats == nullptr || changes_nothing(format, rules_.container)) return;
  record(site).stats = *stats;
  finish({&site, 1});
}

RoundingProbe CountMeasurer::before_rounding(int, const ValueRounding& rounding) const {
  RoundingProbe probe;
  probe.counts_only = true;
  if (counts(rounding)) {
    probe.stats = &records_[static_cast<size_t>(rounding.sites.front())].stats;
  }
  return probe;
}

void CountMeasurer::after_rounding(int value, const ValueRounding& rounding, const RoundingProbe&,
                                   const Tensor*) {
  note_exact(value, rounding);
  finish(rounding.sites);
}

void CountMeasurer::record_copy(int operand, int value, const ValueRounding& rounding) {
  if (!counts(rounding)) return;
  stats_site_[static_cast<size_t>(value)] = stats_site_[static_cast<size_t>(operand)];
  set_unchanged(value, rounding, nullptr);
  finish(rounding.sites);
}

}  // namespace lockstep
