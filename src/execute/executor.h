// Executes a program.
// An executor holds the values of one lane's program and runs it node by node, so that lanes can be
// compared at every node, while their tensors are in cache. It knows one step; the lane owns
// everything kept between steps (weights, scalers, optimizers).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "emulation/kernels/active_kernels.h"
#include "src/execute/loss_effect.h"
#include "src/execute/rounding_keys.h"
#include "src/execute/scaling_state.h"
#include "src/execute/site_record.h"
#include "src/execute/value_plan.h"
#include "src/execute/value_tap.h"
#include "src/graph/op.h"
#include "src/graph/site.h"
#include "src/lower/program.h"

namespace lockstep {

class Executor {
 public:
  // `graph` and `sites` must outlive the executor. `container`: kF32, or kF64 for the truth lane.
  // `kernels` returns the engine's kernels in use at the time of the call. `readers_lag`: how many
  // nodes this executor may be ahead of those that measure their errors against it.
  Executor(const Graph& graph, const SiteTable& sites, Program program, Container container,
           const KernelSet& (*kernels)() = active_kernels, int readers_lag = 0);

  // Binds an input, parameter, buffer or the loss seed; not owned. The tensor must hold values of
  // external_format() in the executor's container (kI32 for integers).
  // Throws: std::logic_error on a wrong id, size or container.
  void bind(std::string_view value_id, const Tensor& tensor);
  const Format* external_format(std::string_view value_id) const;

  // The state of delayed scaling: only read (evaluation), or read and updated by every cast
  // (training). Not owned.
  void bind_scaling(const ScalingState& state);
  void learn_scaling(ScalingState& state);

  // The mask that node `id` (dropout, sdpa, lstm, gru) uses instead of drawing one; kI32, not
  // owned. After forget_masks() all nodes draw again.
  // Throws: std::logic_error unless it fits the node's own mask.
  void give_mask(std::string_view id, const Tensor& mask);
  void forget_masks() { given_masks_.assign(given_masks_.size(), nullptr); }

  // The memory of all computed values of a step.
  int64_t value_bytes() const { return plan_.bytes(); }
  // The part of it that the gradients of parameters fill until the step ends.
  int64_t gradient_bytes() const;
  // Releases that memory; bound values stay.
  void forget_values();

  // `loss_scales` are the factors by which the values of scaled sites are multiplied, by backward
  // pass (one for all of them: `loss_scale`).
  // `sample_sums`: some outputs of every sum of products are recomputed exactly (SiteRecord::health
  // of its accumulator site), and roundings are weighed by the loss (SiteRecord::effect); never in
  // FP64 containers.
  void begin_step(const ExecutionKey& key, std::span<const double> loss_scales,
                  bool sample_sums = false);
  void begin_step(const ExecutionKey& key, double loss_scale, bool sample_sums = false);

  // Whether this lane chooses by its own values where a capture allows it (the decision op's
  // attribute `own`); otherwise it follows what was recorded.
  void decide_itself(bool on) { decides_itself_ = on; }

  // Runs every instruction of graph.nodes[node]. `records` (by site id, the same array throughout a
  // step) receives the measurements; empty: nothing is measured. `reference` is the executor that
  // errors are measured against; it must have run the same node, and at most readers_lag nodes
  // more. Null: this is the reference, whose error is zero by definition.
  void run_node(int node, const Executor* reference, std::span<SiteRecord> records);
  // Measures a bound value of this step at its storage site, into `records` as run_node() does.
  // `stats`: of the rounding that made it; null: it is bound as it came.
  void record_bound(std::string_view value_id, int32_t site, const TensorStats* stats,
                    const Executor* reference, std::span<SiteRecord> records);
  // From now on only what roundings to narrower formats do is counted: records of their sites are
  // `counted`, nothing else is measured. Nearly as fast as without records.
  void count_only(bool on) { counts_only_ = on; }
  // From now on every measured value of one site is copied; null: none. Not owned.
  void tap(ValueTap* tap) { tap_ = tap; }
  int node_count() const { return static_cast<int>(graph_.nodes.size()); }

  // The site at which products of a node are recorded: of its sums, or of its output.
  int32_t product_site(int node) const;
  // What the engine's device has done for this executor since the last call, without steps.
  DeviceWork take_device_work() { return std::exchange(device_work_, {}); }

  // From now on no value rests or shares its memory (value_plan.h), which mutable_value() requires:
  // it may write numbers that the value's format does not hold. Forgets all values.
  void keep_in_place();
  // From now on only forward nodes run, so that no value waits for a backward one. Forgets all
  // values.
  void leave_out_backward();
  // For changing a value between two nodes, after its producer has run.
  // Throws: std::logic_error without keep_in_place().
  Tensor& mutable_value(std::string_view value_id);
  // A value of the graph as its producer wrote it. Results (loss, outputs, gradients, mutations)
  // live until the next step, others until the node after their last use, or readers_lag nodes
  // more. Those that rest (value_plan.h) cannot be read.
  const Tensor& value(std::string_view value_id) const;

  const Program& program() const { return program_; }
  Container container() const { return container_; }
  const KernelSet& kernels() const { return kernels_(); }  // of the engine

 private:
  // What follows the computation of an op's output.
  struct OutputStep {
    GemmRounding how;  // without a format: nothing
    bool measured = false;
    bool weighs = false;             // keep_errors() follows
    int old = -1;                    // the buffer whose new value it is, see old_of_
    ReferenceComparison comparison;  // of the rounded values; see comparison_of()
    // The values before the rounding are needed after it.
    bool keeps() const { return weighs || old >= 0; }
  };
  struct Measured {  // sites whose record already holds an observer's values
    int32_t stats_site = -1, error_site = -1;
  };

  template <typename T>
  void record_external(int value, int32_t site, const TensorStats* stats, const Executor* reference,
                       std::span<SiteRecord> records);
  template <typename T>
  void run_instruction(const Instruction& instruction, const Executor* reference,
                       std::span<SiteRecord> records);
  template <typename T>
  void run_cast(const Instruction& instruction, const Executor* reference,
                std::span<SiteRecord> records);
  template <typename T>
  void run_op(const Instruction& instruction, const Executor* reference,
              std::span<SiteRecord> records);
  QuantizeSpec cast_spec(const Instruction& cast) const;
  OutputStep output_step(const Instruction& instruction, size_t output, const Executor* reference,
                         std::span<SiteRecord> records) const;
  template <typename T>
  void finish_output(const Instruction& instruction, size_t output, OutputStep& step,
                     bool is_rounded, const FillRange* fill, const Executor* reference,
                     std::span<SiteRecord> records);
  template <typename T>
  void run_observe(const Instruction& instruction, const Executor* reference,
                   std::span<SiteRecord> records);
  // In place of an op whose output is a copy that shares its operand's memory.
  template <typename T>
  void share_operand(const Instruction& instruction, const Executor* reference,
                     std::span<SiteRecord> records);
  bool is_shared(const Instruction& instruction) const;
  bool share_memory(std::string_view a, std::string_view b) const;  // values of the graph
  template <typename T>
  void measure_unchanged(int value, const ValueRounding& rounding, const Executor* reference,
                         std::span<SiteRecord> records);
  template <typename T>
  void measure_accumulator(const Instruction& instruction, std::span<const uint8_t> events,
                           bool is_output, const Executor* reference,
                           std::span<SiteRecord> records);
  bool changes_nothing(const Format& format) const;  // rounding the container's values to it
  // Whether the rounding has a record, and whether that is of its counts alone.
  bool records_rounding(const ValueRounding& rounding, std::span<SiteRecord> records) const;
  // Copies the counts of records[sites[0]] to the others.
  void finish_counts(const ValueRounding& rounding, std::span<SiteRecord> records) const;
  // Completes records[sites[0]], whose stats are set, with scale and error; copies it to the
  // others.
  template <typename T>
  void finish_record(int value, const ValueRounding& rounding, const Executor* reference,
                     std::span<SiteRecord> records, const ReferenceComparison& compared = {});
  // What the rounding's kernel may compare the value with; without a reference if there is nothing
  // to compare.
  ReferenceComparison comparison_of(int value, const ValueRounding& rounding,
                                    const Executor* reference) const;
  double record_scale(int value, const ValueRounding& rounding) const;
  template <typename T>
  ErrorStats error_of(int value, const TensorStats& stats, const Format& format, double scale,
                      const Executor* reference) const;

  // In executor_scaled.cc:
  float scale_of(const ScaledCast& cast, float amax) const;
  // Returns the scale that it used.
  float run_scaled_cast(const ScaledCast& cast, std::span<const float> x, std::span<float> y,
                        const StochasticKey& key, TensorStats* stats);
  double scale_of_sums(const Instruction& instruction) const;
  void divide_out_scales(const Instruction& instruction);

  // Keeps the errors of a forward rounding that changed something, until the backward pass knows
  // what they do to the loss; then writes SiteRecord::effect.
  // `scale`: by which `before` was multiplied.
  void keep_errors(const ValueRounding& rounding, std::span<const float> before,
                   std::span<const float> after, float scale, std::span<SiteRecord> records);
  void weigh_errors(size_t node, const Executor& reference, std::span<SiteRecord> records);

  // The mask that this executor's node used, for an executor that would draw the same one; null
  // otherwise.
  const Tensor* mask_for(size_t node, const ExecutionKey& key) const;
  void note_device_work(int node);
  void find_passes();
  void find_buffer_updates();
  void bind_constants();
  double site_scale(int32_t site) const;
  const Tensor& tensor(int value) const;
  Tensor& writable(int value);
  bool is_copy(const Instruction& instruction) const;
  void plan_memory(PlanRules rules);
  // Moves values to and from rest before the node runs.
  void rest_and_wake(int node);
  // Whether the cast's output is its operand, rounded, and nothing else.
  bool is_plain_cast(const Instruction& instruction) const;
  template <typename T>
  void cast_again(const ValuePlan::Rest& rest);
  uint8_t* slot(int number);  // its memory, allocated on first use
  Tensor& place(int value, int number);
  Tensor& place_at(int value, void* memory);

  const Graph& graph_;
  const SiteTable& sites_;
  Program program_;
  Container container_;
  const KernelSet& (*kernels_)();
  std::vector<const OpDef*> ops_;                      // by node
  std::vector<const Tensor*> given_masks_;             // by node, null: it draws
  std::vector<int32_t> sum_site_;                      // accumulator site by node, or -1
  std::vector<int32_t> decision_site_;                 // by node: of what it decides by, or -1
  std::vector<int> mask_of_;                           // by node: program value of the mask that it
                                                       // draws, or -1
  std::vector<int> old_of_;                            // by program value: the buffer whose new
                                                       // value it is, as program value, or -1
  std::vector<std::pair<size_t, size_t>> node_range_;  // instructions of a node
  std::map<std::string, int, std::less<>> value_of_;   // graph value -> its first program value
  std::vector<const Tensor*> external_;                // by program value, null: in a slot
  std::vector<Tensor> constants_;                      // as in the graph, in the lane's formats
  int readers_lag_;
  ValuePlan plan_;
  std::vector<Tensor> slots_;                    // allocated when first written
  std::vector<Tensor> values_;                   // by program value: in slots; empty: nowhere
  std::vector<std::vector<int>> copies_of_;      // by program value: those that share its memory
  std::vector<int> cast_of_;                     // by program value: the index of the instruction,
                                                 // if that is a plain cast, or -1
  std::vector<std::vector<size_t>> rests_from_;  // by node before which they begin
  std::vector<std::vector<size_t>> rests_to_;    // by node before which they end
  std::vector<float> value_scale_;               // by program value, of scaled casts
  const ScalingState* scaling_ = nullptr;
  ScalingState* learning_ = nullptr;
  std::vector<Measured> measured_;  // by program value, of this step
  ExecutionKey key_;
  std::vector<size_t> pass_of_;      // by site: its backward pass
  std::vector<double> loss_scales_;  // by backward pass
  Adjoints adjoints_;
  std::map<int32_t, std::shared_ptr<const RoundingErrors>> errors_;  // by site, not yet weighed
  bool sample_sums_ = false, decides_itself_ = false, counts_only_ = false;
  bool keeps_in_place_ = false;
  ValueTap* tap_ = nullptr;
  DeviceWork device_work_;
};

}  // namespace lockstep
