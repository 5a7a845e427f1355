// Executes a program.
// An executor runs one lane's program node by node, so that lanes can be compared at every node,
// while their tensors are in cache. Its values are in a ValueStore; a Measurer fills the records of
// sites. It knows one step; the lane owns everything kept between steps (weights, scalers,
// optimizers).
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "src/execute/block_products.h"
#include "src/execute/execution_rules.h"
#include "src/execute/measurer.h"
#include "src/execute/rounding_keys.h"
#include "src/execute/scaled_casts.h"
#include "src/execute/site_record.h"
#include "src/execute/step_measuring.h"
#include "src/execute/value_store.h"
#include "src/graph/op.h"
#include "src/graph/site.h"
#include "src/lower/program.h"

namespace lockstep {

class Executor {
 public:
  // `graph` and `sites` must outlive the executor.
  Executor(const Graph& graph, const SiteTable& sites, Program program,
           const ExecutionRules& rules = {});
  Executor(const Executor&) = delete;  // its parts refer to its program
  Executor& operator=(const Executor&) = delete;

  const Program& program() const { return program_; }
  const ExecutionRules& rules() const { return rules_; }
  const KernelSet& kernels() const { return rules_.kernels(); }
  ValueStore& values() { return values_; }
  const ValueStore& values() const { return values_; }
  ScaledCasts& scaled_casts() { return scaled_casts_; }
  void tap(ValueTap* tap) { full_.tap(tap); }  // see FullMeasurer

  // The mask that node `id` (dropout, sdpa, lstm, gru) uses instead of drawing one; kI32, not
  // owned. After forget_masks() all nodes draw again.
  // Throws: std::logic_error unless it fits the node's own mask.
  void give_mask(std::string_view id, const Tensor& mask);
  void forget_masks();

  // `loss_scales`: for each backward pass, the factor that multiplies its scaled sites' values;
  // `loss_scale`: one for all.
  void begin_step(const ExecutionKey& key, std::span<const double> loss_scales,
                  const StepMeasuring& measuring = {});
  void begin_step(const ExecutionKey& key, double loss_scale, const StepMeasuring& measuring = {});

  // Runs every instruction of graph.nodes[node]. `records` (by site id, the same array throughout a
  // step) receives the measurements; empty: nothing is measured. `reference` is the executor that
  // errors are measured against; it must have run the same node, and at most readers_lag nodes
  // more. Null: this is the reference, whose error is zero by definition.
  void run_node(int node, const Executor* reference, std::span<SiteRecord> records);
  // Measures a bound value of this step at its storage site, into `records` as run_node() does.
  // `stats`: of the rounding that made it; null: it is bound as it came.
  void record_bound(std::string_view value_id, int32_t site, const TensorStats* stats,
                    const Executor* reference, std::span<SiteRecord> records);
  int node_count() const { return static_cast<int>(nodes_.size()); }

  // Where a node's products are recorded: the site of its sums, else of its output.
  int32_t product_site(int node) const;
  // What the engine's device has done for this executor since the last call; `step` unset.
  DeviceWork take_device_work() { return std::exchange(device_work_, {}); }

 private:
  struct NodeState {
    const OpDef* op;
    size_t begin = 0, end = 0;           // its instructions
    const Tensor* given_mask = nullptr;  // null: it draws
  };
  // What follows the computation of an op's output.
  struct OutputStep {
    GemmRounding how;  // without a format: nothing
    RoundingProbe probe;
  };

  void find_instructions();
  Measurer* measurer_of(const Executor* reference, std::span<SiteRecord> records);
  template <typename T>
  void run_instruction(const Instruction& instruction, const Executor* reference,
                       Measurer* measurer);
  QuantizeSpec spec_of(const ValueRounding& rounding) const;
  template <typename T>
  void run_cast(const Instruction& cast, Measurer* measurer);
  template <typename T>
  void round_factor(const Instruction& cast, const Tensor& x, Tensor& y, const QuantizeSpec& spec,
                    TensorStats* stats);
  void cast_again(const Instruction& cast, const Tensor& x, Tensor& y) const;
  // Replaces an op whose output is a copy that shares its operand's memory.
  void share_operand(const Instruction& op, Measurer* measurer);
  template <typename T>
  void run_op(const Instruction& op, const Executor* reference, Measurer* measurer);
  OutputStep output_step(const Instruction& op, size_t output, const Measurer* measurer) const;
  template <typename T>
  void finish_output(const Instruction& op, size_t output, OutputStep& step, bool is_rounded,
                     const FillRange* fill, Measurer* measurer);
  void divide_out_scales(const Instruction& op);
  void run_kernels(const Instruction& op, const OpCall& call);
  // The mask that this executor's node used, for an executor that would draw the same one; null
  // otherwise.
  const Tensor* mask_for(size_t node, const ExecutionKey& key) const;
  void note_device_work(int node);

  const Graph& graph_;
  const SiteTable& sites_;
  Program program_;
  ExecutionRules rules_;
  std::vector<NodeState> nodes_;
  ValueStore values_;
  ScaledCasts scaled_casts_;
  bool sums_by_blocks_ = false;                // some op does
  std::map<int, FactorScales> factor_scales_;  // by program value, if some op sums by blocks
  BlockProductBuffers block_buffers_;
  FullMeasurer full_;
  CountMeasurer counts_;
  Measurer* measurer_ = &full_;  // of this step, one of the two; null: it measures nothing
  ExecutionKey key_;
  DeviceWork device_work_;
};

}  // namespace lockstep
