// See captured_loop.h.
#include "src/capture/captured_loop.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "src/core/error.h"
#include "src/core/text.h"
#include "src/graph/autodiff.h"

namespace lockstep {
namespace {

std::string subject(const Capture& capture) {
  return "capture '" + capture.path + "'";
}

// Parameters that some node reads: the others never have a gradient.
std::set<std::string> used_parameters(const Graph& graph) {
  std::set<std::string> used;
  for (const Node& node : graph.nodes) {
    for (const std::string& id : node.inputs) {
      if (id.starts_with("p:")) used.insert(id.substr(2));
    }
  }
  return used;
}

// The size of a graph: nodes, then elements.
std::pair<size_t, int64_t> size_of(const Graph& step) {
  int64_t elements = 0;
  for (const Node& node : step.nodes) {
    for (const TensorType& type : node.outputs) elements += element_count(type.shape);
  }
  return {step.nodes.size(), elements};
}

size_t used_steps(const Capture& capture, int64_t steps) {
  const size_t all = capture.steps.size();
  return steps == 0 ? all : std::min(all, static_cast<size_t>(steps));
}

std::vector<size_t> places_in(const std::vector<size_t>& graphs, const CapturedStep& step) {
  std::vector<size_t> places;
  for (const CapturedMicroBatch& micro : step.micro) {
    const auto at = std::ranges::find(graphs, static_cast<size_t>(micro.graph));
    places.push_back(static_cast<size_t>(at - graphs.begin()));
  }
  return places;
}

void check_clipping(const Capture& capture, size_t steps, ProblemList& problems) {
  const CapturedClip& first = capture.steps.front().clip;
  for (size_t s = 1; s < steps; ++s) {
    const CapturedClip& clip = capture.steps[s].clip;
    const bool clips = clip.max_norm != 0 || clip.max_value != 0;
    const bool alike = clip.max_norm == first.max_norm && clip.max_value == first.max_value &&
                       (clip.max_norm == 0 || clip.norm_type == first.norm_type) &&
                       (!clips || clip.scaled == first.scaled);
    if (alike) continue;
    const auto text = [](const CapturedClip& c) {
      return fmt::format("{}-norm {}, value {}{}", c.norm_type, c.max_norm, c.max_value,
                         c.scaled ? " (scaled)" : "");
    };
    problems.add(
        fmt::format("step {} clips at {}, step 0 at {}: a replay clips all steps in one way", s,
                    text(clip), text(first)),
        fmt::format("--steps {} ends before it", s));
    return;
  }
}

std::vector<OptimizerGroup> groups_of_step(const Capture& capture, size_t step,
                                           ProblemList& problems) {
  std::vector<OptimizerGroup> groups;
  const Optimizer& row = find_optimizer(capture.optimizer);
  for (size_t g = 0; g < capture.steps[step].hyper.size(); ++g) {
    const OptimizerSpec spec{capture.optimizer, capture.steps[step].hyper[g]};
    try {
      check_optimizer_spec(spec);
      groups.push_back({&row, numbers_of(spec)});
    } catch (const InputError& error) {
      for (const std::string& problem : error.problems()) {
        problems.add(fmt::format("step {}, group {}: {}", step, g, problem));
      }
    }
  }
  return groups;
}

// The numbers must not change which states exist (momentum 0 has none).
bool same_states(const std::vector<OptimizerGroup>& a, const std::vector<OptimizerGroup>& b) {
  const auto count = [](const OptimizerGroup& g) { return g.states({1, 1}).size(); };
  return std::ranges::equal(a, b, {}, count, count);
}

// The steps of each of the group's parameters before the first captured one. Adam's state counts
// them; SGD counts none.
std::map<std::string, int64_t> steps_taken(const Capture& capture, size_t group,
                                           const std::set<std::string>& used) {
  std::map<std::string, int64_t> taken;
  for (const std::string& name : capture.groups[group]) {
    if (!used.contains(name)) continue;
    const auto found = capture.start.steps.find(name);
    taken[name] = found == capture.start.steps.end() ? 0 : found->second;
  }
  return taken;
}

}  // namespace

std::string batch_text(const Graph& graph) {
  std::vector<std::string> shapes;
  for (const GraphInput& input : graph.inputs) {
    const bool is_computed = input.path.find(':') != std::string::npos;  // derived:, noise:
    if (!is_computed && !is_seed(input.id)) shapes.push_back(to_string(input.type.shape));
  }
  return join(shapes, ", ");
}

CapturedLoop make_captured_loop(const Capture& capture, int64_t steps) {
  ProblemList problems(subject(capture));
  if (capture.optimizer.empty()) {
    problems.add(
        fmt::format("holds gradients only: its optimizer {} is not modelled",
                    capture.optimizer_class),
        "`lockstep verify` works; for a replay, capture again: lockstep_capture now records "
        "the updates of other optimizers");
  }
  if (capture.steps.empty() || capture.graphs.empty()) problems.add("has no step");
  problems.throw_if_any();
  const size_t count = used_steps(capture, steps);
  check_clipping(capture, count, problems);
  CapturedLoop loop;
  loop.graphs = graphs_in_use(capture, steps);
  for (size_t s = 0; s < count; ++s) {
    loop.graph_of.push_back(places_in(loop.graphs, capture.steps[s]));
    loop.groups.push_back(groups_of_step(capture, s, problems));
    if (!same_states(loop.groups.back(), loop.groups.front())) {
      problems.add(fmt::format("step {}: the optimizer's states differ from step 0's", s),
                   "momentum or amsgrad was switched on or off");
    }
    for (const CapturedMicroBatch& micro : capture.steps[s].micro) {
      if (s >= loop.loss_divisor.size()) loop.loss_divisor.emplace_back();
      loop.loss_divisor[s].push_back(micro.loss_divisor());
      if (std::isfinite(micro.loss_mult) && micro.loss_mult != 0) continue;
      problems.add(fmt::format("step {}: loss_mult {}: a finite nonzero number required", s,
                               micro.loss_mult));
    }
  }
  const std::set<std::string> used = used_parameters(capture.graphs[loop.graphs.front()]);
  for (size_t g = 0; g < capture.groups.size(); ++g) {
    for (const std::string& name : capture.groups[g]) loop.group_of[name] = g;
    const std::map<std::string, int64_t> taken = steps_taken(capture, g, used);
    int64_t most = 0;
    for (const auto& [name, steps] : taken) most = std::max(most, steps);
    for (const auto& [name, steps] : taken) loop.missed[name] = most - steps;
    loop.steps_taken.push_back(most);
  }
  problems.throw_if_any();
  loop.clips_scaled = capture.steps.front().clip.scaled;
  loop.state_codes = capture.state_codes;
  if (capture.scaler.enabled) loop.scaler = capture.scaler;
  return loop;
}

std::vector<size_t> graphs_in_use(const Capture& capture, int64_t steps) {
  std::set<size_t> used;
  for (size_t s = 0; s < used_steps(capture, steps); ++s) {
    for (const CapturedMicroBatch& micro : capture.steps[s].micro) {
      used.insert(static_cast<size_t>(micro.graph));
    }
  }
  std::vector<size_t> graphs(used.begin(), used.end());
  if (graphs.size() < 2) return graphs;
  const auto main = std::ranges::max_element(graphs, {}, [&](size_t number) {
    return size_of(differentiate(captured_graph(capture, number)));
  });
  std::rotate(graphs.begin(), main, main + 1);
  return graphs;
}

Graph captured_graph(const Capture& capture, size_t number) {
  Graph graph = capture.graphs.at(number);
  std::set<std::string> stepped;
  for (const auto& group : capture.groups) stepped.insert(group.begin(), group.end());
  for (Parameter& p : graph.parameters) p.requires_grad &= stepped.contains(p.name);
  return graph;
}

// Backwards: weights before a step are those after an earlier one, or of the start.
void take_recorded_updates(Capture& capture, CapturedLoop& loop) {
  loop.updates.resize(capture.steps.size());
  for (size_t s = capture.steps.size(); s-- > 0;) {
    for (auto& [name, after] : capture.steps[s].weights) {
      const Tensor* before = &capture.start.values.at(name);
      for (size_t t = s; t-- > 0;) {
        const auto earlier = capture.steps[t].weights.find(name);
        if (earlier == capture.steps[t].weights.end()) continue;
        before = &earlier->second;
        break;
      }
      loop.updates[s].emplace(name, recorded_update(*before, std::move(after)));
    }
    capture.steps[s].weights.clear();
  }
}

Tensors captured_start(CapturedState start, const CapturedLoop& loop) {
  Tensors by_name = std::move(start.values);
  for (auto& [parameter, states] : start.optimizer) {
    const auto group = loop.group_of.find(parameter);
    if (group == loop.group_of.end()) continue;
    const std::vector<OptimizerState> wanted =
        loop.groups.front()[group->second].states(by_name.at(parameter).shape());
    for (size_t k = 0; k < wanted.size(); ++k) {
      const auto found = states.find(std::string(wanted[k].name));
      if (found == states.end()) continue;
      by_name.emplace(state_key(parameter, k), std::move(found->second));
    }
  }
  return by_name;
}

}  // namespace lockstep
