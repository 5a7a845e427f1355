// Runs the forward and backward pass of a program.
// Holds a policy's program of one step graph with everything a pass binds: the batch, rounded to
// the inputs' formats, masks, loss seeds, parameters and buffers. Training, evaluation and the
// gates of captures all run their steps here. It knows no optimizer and no loss scaler: its owner
// sets weights and scales, and reads loss, gradients and buffers.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/execute/execution_rules.h"
#include "src/execute/executor.h"
#include "src/execute/rounding_keys.h"
#include "src/execute/step_measuring.h"
#include "src/graph/batch.h"
#include "src/policy/policy.h"

namespace lockstep {

// One forward and backward pass, without its batch.
struct StepPass {
  ExecutionKey key;
  std::vector<double> loss_scales;  // by backward pass: its loss is multiplied by this
  double loss_divisor = 1;          // and divided by this: the sum over micro-batches is a mean
  StepMeasuring measuring = {};
};

class StepRunner {
 public:
  // `graph` and `sites` must outlive the runner; see Executor for `rules`.
  // Throws: InputError from lowering.
  StepRunner(const Graph& graph, const SiteTable& sites, const Policy& policy,
             const ExecutionRules& rules = {});
  StepRunner(const StepRunner&) = delete;  // the executor holds the addresses of its tensors
  StepRunner& operator=(const StepRunner&) = delete;

  // Not owned; values of the program's format (parameter_format, buffer_format) in its container.
  void bind_parameter(const std::string& name, const Tensor& tensor);
  void bind_buffer(const std::string& name, const Tensor& tensor);
  const Format* parameter_format(const std::string& name) const;
  const Format* buffer_format(const std::string& name) const;

  // Binds the loss seeds and the batch with its masks; `batch` must live until the nodes have run.
  // A seed is scale / divisor, rounded to the seed's format. Inputs with a format or container
  // other than the batch's are converted. `records` (by site id; empty: nothing is measured)
  // receives the measurements of the inputs, against a `reference` that has begun with the same
  // batch.
  // Throws: InputError if the batch lacks an input.
  void begin(const StepPass& pass, const Batch& batch, const StepRunner* reference = nullptr,
             std::span<SiteRecord> records = {});
  void begin(const StepPass& pass, Batch&& batch) = delete;

  // See Executor::run_node: `reference` has run the node, at most readers_lag more, or is null.
  void run_node(int node, const StepRunner* reference, std::span<SiteRecord> records);
  int node_count() const { return executor_.node_count(); }
  bool is_backward(int node) const;
  // Runs all nodes, or those of the forward pass, and measures nothing.
  void run_all();
  void run_forward();

  // Valid after the nodes that compute them.
  double loss() const;
  double loss(const std::string& name) const;  // one of loss_names()
  const Tensor& gradient(const std::string& parameter, size_t pass = 0) const;
  // As torch's p.grad += g: the sum is rounded to `format`. `first`: total = gradient. Returns what
  // the rounded sum took of g if `measure`.
  UpdateRecord add_gradient(const std::string& parameter, size_t pass, bool first,
                            const Format* format, Tensor& total, bool measure = false) const;
  // The site at which the parameter's gradient leaves its op, -1: none.
  int32_t gradient_site(const std::string& parameter, size_t pass) const;
  // buffers[name] becomes its new value from the forward pass.
  void take_mutations(std::map<std::string, Tensor>& buffers) const;

  // Releases the memory of computed values and converted inputs.
  void forget_values();

  const Graph& graph() const { return graph_; }
  const KernelSet& kernels() const { return executor_.kernels(); }
  ValueStore& values() { return executor_.values(); }
  const ValueStore& values() const { return executor_.values(); }
  Executor& executor() { return executor_; }
  const Executor& executor() const { return executor_; }

 private:
  void bind_inputs(const Batch& batch, const StepRunner* reference, std::span<SiteRecord> records);
  int32_t storage_site(const std::string& value_id) const;

  const Graph& graph_;
  std::map<std::string, int32_t> storage_sites_;                // by value id
  std::vector<std::map<std::string, int32_t>> gradient_sites_;  // by backward pass and parameter
  Rounding rounding_;                                           // the policy's
  Executor executor_;
  std::vector<Tensor> seeds_;  // by backward pass; empty for a graph without one
  std::map<std::string, Tensor> converted_inputs_;  // by value id
  ExecutionKey key_;                                // of the pass in progress
};

}  // namespace lockstep
