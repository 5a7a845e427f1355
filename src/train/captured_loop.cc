// See captured_loop.h.
#include "src/train/captured_loop.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "src/core/error.h"
#include "src/train/lane.h"
#include "src/train/lockstep.h"

namespace lockstep {
namespace {

std::string subject(const Capture& capture) {
  return "capture '" + capture.path + "'";
}

// Parameters that some node of the first graph reads: the others never have a gradient.
std::set<std::string> used_parameters(const Capture& capture) {
  std::set<std::string> used;
  for (const Node& node : capture.graphs.front().nodes) {
    for (const std::string& id : node.inputs) {
      if (id.starts_with("p:")) used.insert(id.substr(2));
    }
  }
  return used;
}

void check_graphs(const Capture& capture, size_t steps, ProblemList& problems) {
  for (size_t s = 0; s < steps; ++s) {
    const CapturedStep& step = capture.steps[s];
    if (step.micro.size() != capture.steps.front().micro.size()) {
      problems.add(fmt::format("step {} has {} micro-batches, step 0 has {}: a replay needs the "
                               "same number in all",
                               s, step.micro.size(), capture.steps.front().micro.size()),
                   s > 0 ? fmt::format("--steps {} ends before it", s) : "");
      return;
    }
    for (const CapturedMicroBatch& micro : step.micro) {
      if (micro.graph == 0) continue;
      problems.add(fmt::format("step {} has a batch of another shape than step 0: a replay runs "
                               "one graph, this capture has {}",
                               s, capture.graphs.size()),
                   s > 0 ? fmt::format("--steps {} ends before it; drop_last=True avoids it", s)
                         : "capture with drop_last=True");
      return;
    }
  }
}

void check_clipping(const Capture& capture, size_t steps, ProblemList& problems) {
  const CapturedClip& first = capture.steps.front().clip;
  for (size_t s = 1; s < steps; ++s) {
    const CapturedClip& clip = capture.steps[s].clip;
    const bool clips = clip.max_norm != 0 || clip.max_value != 0;
    const bool alike = clip.max_norm == first.max_norm && clip.max_value == first.max_value &&
                       (!clips || clip.scaled == first.scaled);
    if (alike) continue;
    const auto text = [](const CapturedClip& c) {
      return fmt::format("norm {}, value {}{}", c.max_norm, c.max_value,
                         c.scaled ? " (scaled)" : "");
    };
    problems.add(fmt::format("step {} clips at {}, step 0 at {}: a replay clips alike in all", s,
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
      const HyperNumbers numbers = numbers_of(spec);
      groups.push_back({&row, numbers, row.states(numbers)});
    } catch (const InputError& error) {
      for (const std::string& problem : error.problems()) {
        problems.add(fmt::format("step {}, group {}: {}", step, g, problem));
      }
    }
  }
  return groups;
}

// States may not come and go with the numbers (momentum 0 has none).
bool same_states(const std::vector<OptimizerGroup>& a, const std::vector<OptimizerGroup>& b) {
  return std::ranges::equal(
      a, b, {}, [](const auto& g) { return g.states.size(); },
      [](const auto& g) { return g.states.size(); });
}

int64_t steps_taken(const Capture& capture, size_t group, const std::set<std::string>& used,
                    ProblemList& problems) {
  std::string first;
  int64_t taken = 0;
  for (const std::string& name : capture.groups[group]) {
    if (!used.contains(name)) continue;
    const auto found = capture.start.steps.find(name);
    const int64_t here = found == capture.start.steps.end() ? 0 : found->second;
    if (first.empty()) {
      first = name;
      taken = here;
    } else if (here != taken) {
      problems.add(fmt::format("optimizer group {}: '{}' has taken {} steps, '{}' {}: a replay "
                               "counts them by group",
                               group, first, taken, name, here),
                   "put parameters that began later into a group of their own");
      break;
    }
  }
  return taken;
}

size_t used_steps(const Capture& capture, int64_t steps) {
  return std::min(capture.steps.size(), static_cast<size_t>(std::max<int64_t>(steps, 1)));
}

}  // namespace

CapturedLoop make_captured_loop(const Capture& capture, int64_t steps) {
  ProblemList problems(subject(capture));
  if (capture.optimizer.empty()) {
    problems.add(fmt::format("holds gradients only: its optimizer {} is not modelled",
                             capture.optimizer_class),
                 "`lockstep verify` works; a replay needs SGD, Adam or AdamW");
  }
  if (capture.steps.empty() || capture.graphs.empty()) problems.add("has no step");
  problems.throw_if_any();
  const size_t count = used_steps(capture, steps);
  check_graphs(capture, count, problems);
  check_clipping(capture, count, problems);
  CapturedLoop loop;
  for (size_t s = 0; s < count; ++s) {
    loop.groups.push_back(groups_of_step(capture, s, problems));
    if (!same_states(loop.groups.back(), loop.groups.front())) {
      problems.add(fmt::format("step {}: its optimizer keeps other states than that of step 0", s),
                   "momentum or amsgrad was switched on or off");
    }
    for (const CapturedMicroBatch& micro : capture.steps[s].micro) {
      if (s >= loop.loss_mult.size()) loop.loss_mult.emplace_back();
      loop.loss_mult[s].push_back(micro.loss_mult);
      if (std::isfinite(micro.loss_mult) && micro.loss_mult != 0) continue;
      problems.add(
          fmt::format("step {}: loss_mult {}: a finite number but 0 required", s, micro.loss_mult));
    }
  }
  const std::set<std::string> used = used_parameters(capture);
  for (size_t g = 0; g < capture.groups.size(); ++g) {
    for (const std::string& name : capture.groups[g]) loop.group_of[name] = g;
    loop.steps_taken.push_back(steps_taken(capture, g, used, problems));
  }
  problems.throw_if_any();
  loop.clips_scaled = capture.steps.front().clip.scaled;
  if (capture.scaler.enabled) loop.scaler = capture.scaler;
  return loop;
}

void take_loop_options(const Capture& capture, RunOptions& options) {
  ProblemList problems("replay of " + subject(capture));
  const auto count = static_cast<int64_t>(capture.steps.size());
  if (options.steps == 0) options.steps = count;
  if (options.steps > count && !options.cycle) {
    problems.add(fmt::format("--steps {}: the capture has {}", options.steps, count),
                 "--cycle begins again behind the last one");
  }
  problems.throw_if_any();
  const CapturedStep& first = capture.steps.at(0);
  const auto& inputs = capture.graphs.at(0).inputs;
  const bool has_batch = !inputs.empty() && !inputs[0].type.shape.empty();
  options.batch = has_batch ? inputs[0].type.shape[0] : 1;
  options.accumulate = static_cast<int64_t>(first.micro.size());
  options.capture_hash = capture.sha256;
  options.data = "captured";
  options.optimizer = {capture.optimizer, first.hyper.at(0)};
  options.groups.clear();
  for (size_t g = 1; g < first.hyper.size(); ++g) {
    options.groups.push_back(
        {fmt::format("captured group {}", g), {capture.optimizer, first.hyper[g]}});
  }
  options.clip_norm = first.clip.max_norm;
  options.clip_value = first.clip.max_value;
}

Graph captured_graph(const Capture& capture) {
  Graph graph = capture.graphs.at(0);
  std::set<std::string> stepped;
  for (const auto& group : capture.groups) stepped.insert(group.begin(), group.end());
  for (Parameter& p : graph.parameters) p.requires_grad &= stepped.contains(p.name);
  return graph;
}

Tensors captured_start(const Capture& capture, const CapturedLoop& loop) {
  Tensors start = capture.start.values;
  for (const auto& [parameter, states] : capture.start.optimizer) {
    const auto group = loop.group_of.find(parameter);
    if (group == loop.group_of.end()) continue;
    const std::vector<OptimizerState>& wanted = loop.groups.front()[group->second].states;
    for (size_t k = 0; k < wanted.size(); ++k) {
      const auto found = states.find(std::string(wanted[k].name));
      if (found != states.end()) start.emplace(state_key(parameter, k), found->second);
    }
  }
  return start;
}

}  // namespace lockstep
