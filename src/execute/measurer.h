// Measures the values of a step.
// An executor names every rounding and op; a measurer fills the records of their sites. It has two
// kinds: FullMeasurer writes all statistics, errors against the reference, the health of sums and
// the effect on the loss; CountMeasurer counts only what roundings to narrower formats do, nearly
// as fast as without records. Its functions are called once per rounding or op, never per element.
// It changes no value.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "emulation/kernels/args/quantize_spec.h"
#include "src/execute/execution_rules.h"
#include "src/execute/loss_effect.h"
#include "src/execute/site_record.h"
#include "src/execute/value_store.h"
#include "src/execute/value_tap.h"
#include "src/graph/site.h"
#include "src/lower/program.h"

namespace lockstep {

// The statistics of one rounding: planned before it, filled by the rounding's kernel, read after
// it.
struct RoundingProbe {
  TensorStats* stats = nullptr;  // null: nothing is measured
  bool counts_only = false;
  bool weighs = false;             // its errors are weighed by the loss
  int old = -1;                    // program value of the buffer it updates, or -1
  ReferenceComparison comparison;  // without a reference: nothing to compare
  // The values before the rounding are needed after it.
  bool keeps() const { return weighs || old >= 0; }
};

// The statistics of one op, filled while it runs.
struct OpProbe {
  std::vector<uint8_t> events;  // of output 0, see GemmArgs; empty: not wanted
  bool samples_sums = false;
  AccumulatorHealth health;
  bool sums_again = false;                    // see other_sums.h
  std::vector<AccumulatorHealth> other_sums;  // by output
  DecisionStats* decisions = nullptr;
};

class Measurer {
 public:
  // All must outlive the measurer.
  Measurer(const Program& program, const ValueStore& values, const ExecutionRules& rules);
  virtual ~Measurer() = default;

  virtual void begin_step(std::span<const double> loss_scales, bool sample_sums);
  // Where all calls write until the next one: records by site id, the same array throughout a step;
  // and the values to measure errors against. Null: this is the reference.
  void write_to(std::span<SiteRecord> records, const ValueStore* reference) {
    records_ = records;
    reference_ = reference;
  }

  // A bound value at its storage site. `stats`: of the rounding that made it; null: it is bound as
  // it came.
  virtual void record_bound(int value, int32_t site, const TensorStats* stats) = 0;
  virtual RoundingProbe before_rounding(int value, const ValueRounding& rounding) const = 0;
  // `before`: the unrounded values, if the probe keeps them.
  virtual void after_rounding(int value, const ValueRounding& rounding, const RoundingProbe& probe,
                              const Tensor* before) = 0;
  // An operand that no cast feeds.
  virtual void record_observed(int value, const ValueRounding& rounding) = 0;
  // A value that is its operand, in the same memory.
  virtual void record_copy(int operand, int value, const ValueRounding& rounding) = 0;
  virtual OpProbe before_op(const Instruction& op) const;
  // The sums in output 0, before their scales are divided out. `is_output`: nothing is added to
  // them.
  virtual void record_sums(const Instruction&, const OpProbe&, bool /*is_output*/) {}
  virtual void after_op(const Instruction&, const OpProbe&) {}
  virtual void after_node(size_t) {}

 protected:
  SiteRecord& record(int32_t site) { return records_[static_cast<size_t>(site)]; }
  TensorStats observed(int value, const Format& format, ReferenceComparison* comparison) const;
  // A value is not read again if its statistics already exist: it was produced by an exact rounding
  // (before == after), or observed at an earlier site.
  void set_unchanged(int value, const ValueRounding& rounding, ReferenceComparison* comparison);
  void note_exact(int value, const ValueRounding& rounding);

  const Program& program_;
  const ValueStore& values_;
  const ExecutionRules& rules_;
  std::span<SiteRecord> records_;
  const ValueStore* reference_ = nullptr;
  // By program value, of this step: the site whose record holds its statistics, or -1.
  std::vector<int32_t> stats_site_;
};

class CountMeasurer : public Measurer {
 public:
  using Measurer::Measurer;
  void record_bound(int value, int32_t site, const TensorStats* stats) override;
  RoundingProbe before_rounding(int value, const ValueRounding& rounding) const override;
  void after_rounding(int value, const ValueRounding& rounding, const RoundingProbe& probe,
                      const Tensor* before) override;
  void record_observed(int, const ValueRounding&) override {}
  void record_copy(int operand, int value, const ValueRounding& rounding) override;

 private:
  bool counts(const ValueRounding& rounding) const;
  // Keeps the counts of the first site's statistics, at all sites.
  void finish(std::span<const int32_t> sites);
};

class FullMeasurer : public Measurer {
 public:
  FullMeasurer(const Graph& graph, const SiteTable& sites, const Program& program,
               const ValueStore& values, const ExecutionRules& rules);
  // Copies every measured value of one site from now on; null: none. Not owned.
  void tap(ValueTap* tap) { tap_ = tap; }

  void begin_step(std::span<const double> loss_scales, bool sample_sums) override;
  void record_bound(int value, int32_t site, const TensorStats* stats) override;
  RoundingProbe before_rounding(int value, const ValueRounding& rounding) const override;
  void after_rounding(int value, const ValueRounding& rounding, const RoundingProbe& probe,
                      const Tensor* before) override;
  void record_observed(int value, const ValueRounding& rounding) override;
  void record_copy(int operand, int value, const ValueRounding& rounding) override;
  OpProbe before_op(const Instruction& op) const override;
  // Histogram, moments and hash are those of the final sums. The counts (overflow and the like) are
  // of outputs with such an event anywhere in their chain. Sums that are not yet the op's output (a
  // bias is still added) have no counterpart in the reference: compared stays 0.
  void record_sums(const Instruction& op, const OpProbe& probe, bool is_output) override;
  void after_op(const Instruction& op, const OpProbe& probe) override;
  void after_node(size_t node) override;

 private:
  double site_scale(int32_t site) const;  // by which the site's values are multiplied
  double record_scale(int value, const ValueRounding& rounding) const;
  // What the rounding's kernel may compare the value with.
  ReferenceComparison comparison_of(int value, const ValueRounding& rounding) const;
  ErrorStats error_of(int value, const TensorStats& stats, const Format& format,
                      double scale) const;
  // Completes the first site's record, whose stats are set, with scale and error; copies it to the
  // others.
  void finish(int value, const ValueRounding& rounding, const ReferenceComparison& compared);
  // Keeps the errors of a forward rounding that changed something, until the backward pass knows
  // what they do to the loss.
  void keep_errors(int value, const ValueRounding& rounding, const Tensor& before);
  bool has_adjoint(int32_t site) const { return !adjoints_.of_site(site).empty(); }

  const SiteTable& sites_;
  std::vector<int32_t> sum_site_;       // by node: of its sums of products, or -1
  std::vector<bool> sums_otherwise_;    // by node: see other_sums.h
  std::vector<int32_t> decision_site_;  // by node: of what it decides by, or -1
  std::vector<size_t> pass_of_;         // by site: its backward pass
  std::vector<int32_t> error_site_;     // by program value, as stats_site_: with an error
  std::vector<double> loss_scales_;     // by backward pass
  bool sample_sums_ = false;
  Adjoints adjoints_;
  std::map<int32_t, std::shared_ptr<const RoundingErrors>> errors_;  // by site, not yet weighed
  ValueTap* tap_ = nullptr;
};

// The accumulator site of a node that shows its sums of products, or -1.
int32_t sum_site(const SiteTable& sites, const Node& node);

}  // namespace lockstep
