// See parameter_groups.h.
#include "src/update/parameter_groups.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "src/core/error.h"
#include "src/core/text.h"
#include "src/graph/op.h"

namespace lockstep {
namespace {

bool belongs(const Parameter& parameter, std::string_view glob) {
  return glob_match(glob, parameter.layer) || glob_match(glob, parameter.name);
}

std::string layers_of(const Graph& graph) {
  std::vector<std::string> names;
  for (const Parameter& p : graph.parameters) {
    const std::string& name = p.layer.empty() ? p.name : p.layer;
    if (names.empty() || names.back() != name) names.push_back(name);
  }
  return "layers with parameters: " + join(names, ", ");
}

bool matches_any(const Graph& graph, std::string_view glob) {
  return std::any_of(graph.parameters.begin(), graph.parameters.end(),
                     [&](const Parameter& p) { return belongs(p, glob); });
}

}  // namespace

std::vector<Shape> state_shapes(const OptimizerGroup& group, const Shape& weight) {
  std::vector<Shape> shapes;
  for (const OptimizerState& state : group.states(weight)) {
    shapes.push_back(state.shape_for(weight));
  }
  return shapes;
}

std::vector<OptimizerGroup> optimizer_groups(const OptimizerSpec& own,
                                             const std::vector<ParameterGroup>& groups) {
  std::vector<OptimizerGroup> all;
  const auto add = [&](const OptimizerSpec& spec) {
    check_optimizer_spec(spec);
    const Optimizer& optimizer = find_optimizer(spec.name);
    all.push_back({&optimizer, numbers_of(spec)});
  };
  add(own);
  for (const ParameterGroup& group : groups) add(group.optimizer);
  return all;
}

size_t group_of(const Parameter& parameter, const std::vector<ParameterGroup>& groups) {
  for (size_t i = groups.size(); i > 0; --i) {
    const ParameterGroup& group = groups[i - 1];
    if (belongs(parameter, group.layers) &&
        find_optimizer(group.optimizer.name).takes(parameter.type.shape)) {
      return i;
    }
  }
  return 0;
}

ParameterGroup parse_group(std::string_view text, const OptimizerSpec& base) {
  const std::string subject = fmt::format("group '{}'", text);
  const size_t colon = text.find(':');
  if (colon == 0 || colon == std::string_view::npos || colon + 1 == text.size()) {
    throw InputError(subject + ": LAYERS:NAME=VALUE,... required",
                     "e.g. 'fc*:optimizer=adamw,lr=1e-3'");
  }
  ParameterGroup group{std::string(text.substr(0, colon)), base};
  std::vector<std::string> numbers;
  constexpr std::string_view kOptimizer = "optimizer=";
  for (const std::string& part : split(text.substr(colon + 1), ',')) {
    if (!part.starts_with(kOptimizer)) {
      numbers.push_back(part);
      continue;
    }
    const std::string name = part.substr(kOptimizer.size());
    if (name != base.name) group.optimizer = {name, {}};
  }
  for (const auto& [name, value] : parse_hyper_values(subject, join(numbers, ","))) {
    group.optimizer.values[name] = value;
  }
  return group;
}

void freeze_layers(Graph& forward, const std::vector<std::string>& globs) {
  ProblemList problems("freeze");
  for (const std::string& glob : globs) {
    if (!matches_any(forward, glob)) {
      problems.add("'" + glob + "': no layer with parameters matches", layers_of(forward));
    }
    for (Parameter& p : forward.parameters) p.requires_grad &= !belongs(p, glob);
  }
  const bool any_left = std::any_of(forward.parameters.begin(), forward.parameters.end(),
                                    [](const Parameter& p) { return p.requires_grad; });
  if (!globs.empty() && !any_left) {
    problems.add("'" + join(globs, ",") + "': no parameter is left to train", layers_of(forward));
  }
  problems.throw_if_any();
}

void set_batch_norm_eps(Graph& forward, double eps) {
  ProblemList problems("batch-norm-eps");
  if (!(eps > 0 && std::isfinite(eps))) {
    problems.add(fmt::format("{}: 0 < batch-norm-eps < infinity required", eps));
  }
  bool found = false;
  for (Node& node : forward.nodes) {
    if (!find_op(node.op).meaning.has_running_statistics) continue;
    node.attributes["eps"] = eps;
    found = true;
  }
  if (!found) problems.add(fmt::format("'{}' has no batch_norm", forward.name));
  problems.throw_if_any();
}

void set_eval_batch_norm(Graph& forward, const std::vector<std::string>& globs) {
  std::set<std::string> outputs;  // of the nodes put in evaluation mode
  std::vector<std::string> layers;
  for (const Node& node : forward.nodes) {
    if (find_op(node.op).meaning.has_running_statistics) layers.push_back(node.layer);
  }
  ProblemList problems("eval-batch-norm");
  for (const std::string& glob : globs) {
    bool found = false;
    for (Node& node : forward.nodes) {
      if (!find_op(node.op).meaning.has_running_statistics || !glob_match(glob, node.layer))
        continue;
      node.attributes["training"] = false;
      outputs.insert(node.id);
      found = true;
    }
    if (!found) {
      problems.add("'" + glob + "': no batch_norm layer matches",
                   "batch_norm layers: " + join(layers, ", "));
    }
  }
  problems.throw_if_any();
  std::erase_if(forward.mutations, [&](const Mutation& mutation) {
    return outputs.contains(split_value_id(mutation.value).first);
  });
}

void check_groups(const Graph& graph, const OptimizerSpec& own,
                  const std::vector<ParameterGroup>& groups) {
  ProblemList problems("group");
  for (const Parameter& p : graph.parameters) {
    if (!p.requires_grad || group_of(p, groups) != 0) continue;
    if (find_optimizer(own.name).takes(p.type.shape)) continue;
    problems.add(
        fmt::format("optimizer '{}': parameter '{}' is no matrix", own.name, p.name),
        fmt::format("an optimizer for it, and {0} for the others: --optimizer adamw --group "
                    "'*:optimizer={0}'",
                    own.name));
    break;
  }
  for (const ParameterGroup& group : groups) {
    if (matches_any(graph, group.layers)) continue;
    problems.add("'" + group.layers + "': no layer with parameters matches", layers_of(graph));
  }
  problems.throw_if_any();
}

}  // namespace lockstep
