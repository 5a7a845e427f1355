// The optimizer that updates each parameter.
// A run has one optimizer. Groups of layers may have others, like torch's parameter groups. Knows
// names only.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "src/graph/ir.h"
#include "src/update/optimizer_spec.h"
#include "src/update/optimizers.h"

namespace lockstep {

struct OptimizerGroup {
  const Optimizer* optimizer;
  HyperNumbers numbers;

  std::vector<OptimizerState> states(const Shape& weight) const {
    return optimizer->states(numbers, weight);
  }
};

// The shapes of a parameter's states.
std::vector<Shape> state_shapes(const OptimizerGroup& group, const Shape& weight);

// The name of state tensor `index` of a parameter, in checkpoints and in a lane's initial values.
inline std::string state_key(const std::string& parameter, size_t index) {
  return "state/" + parameter + "/" + std::to_string(index);
}

// Group 0 is the run's own optimizer, group i + 1 is groups[i].
// Throws: InputError from check_optimizer_spec.
std::vector<OptimizerGroup> optimizer_groups(const OptimizerSpec& own,
                                             const std::vector<ParameterGroup>& groups);

// The last group whose glob matches the parameter's layer or name and whose optimizer takes its
// shape, else 0.
size_t group_of(const Parameter& parameter, const std::vector<ParameterGroup>& groups);

// "fc*:optimizer=adamw,lr=1e-3": a glob over layers, then the differences from `base`. Another
// optimizer inherits none of the base's numbers. Throws: InputError.
ParameterGroup parse_group(std::string_view text, const OptimizerSpec& base);

// Excludes the matching layers' parameters from training (requires_grad = false).
// Throws: InputError if a glob matches nothing, or no parameter is left to train.
void freeze_layers(Graph& forward, const std::vector<std::string>& globs);

// Puts the matching batch_norm layers in evaluation mode: they read their running statistics and do
// not update them. Throws: InputError if a glob matches no such layer.
void set_eval_batch_norm(Graph& forward, const std::vector<std::string>& globs);

// Sets the eps of every batch_norm, 0 < eps < infinity. Throws: InputError for any other number, or
// if the graph has no batch_norm.
void set_batch_norm_eps(Graph& forward, double eps);

// Throws: InputError if a group's glob matches no parameter, or the run's own optimizer takes only
// matrices and would get another parameter.
void check_groups(const Graph& graph, const OptimizerSpec& own,
                  const std::vector<ParameterGroup>& groups);

}  // namespace lockstep
