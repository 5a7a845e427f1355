// See prepared_run.h.
#include "src/train/prepared_run.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "src/core/error.h"
#include "src/core/free_memory.h"
#include "src/core/text.h"
#include "src/data/sources.h"
#include "src/graph/autodiff.h"
#include "src/graph/same_step.h"
#include "src/lower/lower.h"
#include "src/train/lane/captured_lane.h"
#include "src/train/loss_passes.h"
#include "src/train/run_memory.h"
#include "src/train/run_option_rows.h"
#include "src/train/run_setup.h"
#include "src/update/parameter_groups.h"
#include "src/update/schedules.h"
#include "src/update/vanishing.h"

namespace lockstep {
namespace {

// The names of groups in warnings: a capture's groups by their names, others by the option that
// made them, the run's own optimizer without one.
std::vector<std::string> names_of_groups(const RunOptions& options) {
  std::vector<std::string> names = {""};
  for (const ParameterGroup& group : options.groups) {
    names.push_back(
        (options.capture_hash.empty() ? fmt::format("{} ", option_name(&RunOptions::groups)) : "") +
        group.layers);
  }
  return names;
}

// Every lane keeps its own weights, and a step at least its largest value. The rest of its memory
// depends on engines and the allocator: what passes here may still be too large.
void require_memory(const Graph& forward, size_t lanes, ProblemList& problems) {
  constexpr double kElementBytes = sizeof(float), kGibi = 1 << 30;
  double weights = 0, largest = 0;
  for (const Parameter& p : forward.parameters) {
    weights += static_cast<double>(element_count(p.type.shape));
  }
  for (const Node& node : forward.nodes) {
    for (const TensorType& output : node.outputs) {
      largest = std::max(largest, static_cast<double>(element_count(output.shape)));
    }
  }
  const double needed = (weights + largest) * kElementBytes * static_cast<double>(lanes) / kGibi;
  const double there = static_cast<double>(sysconf(_SC_PHYS_PAGES)) *
                       static_cast<double>(sysconf(_SC_PAGESIZE)) / kGibi;
  if (!(there > 0) || needed <= there) return;
  problems.add(fmt::format("model: the weights and the largest value of {} lanes take {:.1f} GiB, "
                           "this machine has {:.1f}",
                           lanes, needed, there),
               "a smaller --size or --batch, or fewer --lanes, need less");
}

// What a policy for a whole model asks for that this part lacks, which would be a mistake
// elsewhere.
void add_unmatched(const Graph& graph, const SiteTable& sites, LaneDescription& lane) {
  Policy whole = lane.policy;
  whole.is_of_larger_model = false;
  try {
    lower(graph, sites, whole, container_of(lane) == Container::kF64);
  } catch (const InputError& error) {
    for (const std::string& problem : error.problems()) {
      // Without the hint, which lists what this part has: equal in all parts that lack it.
      lane.warnings.push_back(problem.substr(0, problem.find("; ")) + std::string(kInThisPart));
    }
  }
}

}  // namespace

PreparedRun::PreparedRun(RunOptions wanted, const std::map<std::string, Tensor>* start)
    : options(std::move(wanted)) {
  ProblemList problems("replay");
  check_run_numbers(options, problems);
  collect_problems(problems, [&] { check_optimizer_spec(options.optimizer); });
  refuse_options_of_captures(options, problems);
  for (const ParameterGroup& group : options.groups) {
    collect_problems(problems, [&] { check_optimizer_spec(group.optimizer); });
  }
  collect_problems(problems, [&] { check_schedule(options.schedule); });
  collect_problems(problems, [&] { model = &find_model(options.model); });
  if (model != nullptr && options.data.empty()) options.data = model->default_data;
  ModelSizes sizes;
  if (model == nullptr && !options.data.empty()) {
    collect_problems(problems, [&] { find_data_source(options.data); });
  } else if (model != nullptr) {
    collect_problems(problems, [&] {
      sizes = complete_sizes(*model, options.sizes);
      data = open_data_set(options.data, data_request(*model, sizes, options.seed));
    });
  }
  if (data != nullptr && options.batch > data->train_count()) {
    problems.add(fmt::format("batch {}: at most the {} training examples of '{}'", options.batch,
                             data->train_count(), options.data));
  }
  description.lanes = describe_lanes(options, /*is_capture=*/false, problems);

  const ModelShape shape{options.batch / options.workers, data->image_shape(), data->class_count(),
                         sizes};
  Graph forward = model->build(shape, /*training=*/true);
  require_memory(forward, description.lanes.size(), problems);
  problems.throw_if_any();
  change_layers(options, forward, problems);
  collect_problems(problems, [&] { check_groups(forward, options.optimizer, options.groups); });
  problems.throw_if_any();
  std::map<std::string, Tensor> initial = initial_state(*model, sizes, forward, options.seed);
  if (start != nullptr) {
    take_start(*start, initial, problems);
    problems.throw_if_any();
  }
  nudge_weights(forward, options.nudge, initial);
  make_lanes({forward}, initial);
  if (options.held_out) {
    evaluator =
        std::make_unique<Evaluator>(*model, sizes, *data, options.optimizer, options.batch,
                                    options.seed, options.batch_norm_eps, options.eval_in_fp32);
  }
  description.data = data->describe();
}

PreparedRun::PreparedRun(RunOptions wanted, Capture captured)
    : options(std::move(wanted)), capture(std::move(captured)) {
  Capture& from = *capture;
  ProblemList problems("replay");
  collect_problems(problems, [&] {
    change_loop(options.loop_changes, from);
    loop = make_captured_loop(from, options.captured_order.empty() ? options.steps : 0);
    take_loop_options(from, loop, options);
    for (const std::string& name : from.watch) {
      if (std::ranges::count(options.watch, name) == 0) options.watch.push_back(name);
    }
    loop.lacks_scaler = lacks_scaler(from);
    take_recorded_updates(from, loop);
  });
  if (problems.empty()) check_run_numbers(options, problems);
  std::erase(options.lanes, std::string(kCapturedLane));  // always there
  description.lanes = describe_lanes(options, /*is_capture=*/true, problems);
  for (LaneDescription& lane : description.lanes) {
    lane.policy.is_of_larger_model = !options.part.empty();
  }
  std::vector<Graph> forward;
  for (const size_t number : loop.graphs) forward.push_back(captured_graph(from, number));
  for (Graph& one : forward) {
    ProblemList of_one("replay");  // the same problems in all
    change_layers(options, one, of_one);
    of_one.throw_if_any();
  }
  std::map<std::string, Tensor> initial = captured_start(std::move(from.start), loop);
  nudge_weights(forward.front(), options.nudge, initial);
  make_lanes(std::move(forward), initial);
  description.data = describe_captured_data(from);
  description.batches_hash = hash_captured_batches(from);
  description.lines = from.lines;
  for (ScriptLine& line : lines_of_batches(from)) description.lines.push_back(std::move(line));
  if (options.steps > static_cast<int64_t>(from.steps.size())) return;  // it ended before the run
  description.lanes.push_back(describe_captured_lane(from));
}

Graph PreparedRun::step_of(const Graph& forward) const {
  return options.backward_per_loss ? differentiate_per_loss(forward) : differentiate(forward);
}

// Graphs of other shapes have the main step's sites. Those of other paths add their own, before any
// is numbered.
void PreparedRun::add_graphs(const std::vector<Graph>& forward, const StateShapes& states_of) {
  PathNodes paths(graph);
  std::vector<SiteTable> own;
  std::vector<std::map<std::string, std::string>> nodes;
  for (size_t i = 1; i < forward.size(); ++i) {
    const Graph& other = other_shapes.emplace_back(step_of(forward[i])).graph;
    own.push_back(make_sites(other, states_of));
    try {
      nodes.push_back(match_nodes(graph, other));
    } catch (const InputError&) {
      nodes.push_back(paths.match(other, i));
      add_sites(sites, own.back(), nodes.back());
    }
  }
  for (size_t i = 0; i < own.size(); ++i) {
    other_shapes[i].sites = sites_numbered_as(sites, own[i], nodes[i]);
  }
}

void PreparedRun::make_lanes(std::vector<Graph> forward,
                             const std::map<std::string, Tensor>& initial) {
  graph = step_of(forward.front());
  const auto groups =
      capture ? loop.groups.front() : optimizer_groups(options.optimizer, options.groups);
  const auto states_of = [&](const Parameter& parameter) {
    return state_shapes(groups[context.updates.at(parameter.name).group], parameter.type.shape);
  };
  const CapturedLoop* script = capture ? &loop : nullptr;
  context = make_lane_context(graph, sites, options, script);  // only for the groups
  sites = make_sites(graph, states_of, options.workers);
  add_graphs(forward, states_of);
  context = make_lane_context(graph, sites, options, script, other_shapes);
  std::vector<const Graph*> graphs = {&graph};
  for (const StepGraph& other : other_shapes) graphs.push_back(&other.graph);
  context.watched = find_watched(graphs, options.watch);
  for (const WatchedValue& value : context.watched) description.watched.push_back(value.name);
  const std::vector<std::string> group_names = names_of_groups(options);
  ProblemList problems("replay");
  std::vector<LaneMemory> memory;
  for (const LaneDescription& lane : description.lanes) {
    if (has_scaler_per_loss(lane.policy, graph) && lane.policy.loss_scale_use.clip_before_unscale) {
      problems.add("lane '" + lane.name +
                       "': clip = \"before_unscale\" with a scaler for each loss: gradients with "
                       "different scales cannot be clipped as one",
                   "use [loss_scale] per_loss = \"shared\", or --backward joint");
    }
    collect_problems(problems, [&] {
      lanes.push_back(std::make_unique<Lane>(context, lane));
      const int64_t before = description.memory.bytes();
      lanes.back()->add_memory(description.memory);
      memory.push_back({lane.name, description.memory.bytes() - before});
    });
  }
  problems.throw_if_any();
  description.memory_warning = check_run_memory(memory, parameter_count(graph), capture.has_value(),
                                                free_memory().value_or(0));
  for (size_t i = 0; i < lanes.size(); ++i) {
    LaneDescription& lane = description.lanes[i];
    lanes[i]->start(initial);
    lane = lanes[i]->description();               // with the engine's fallbacks
    if (container_of(lane) == Container::kF32) {  // FP64 loses none
      lane.warnings = vanishing_constants(lane.policy, groups, group_names);
    }
    if (lane.policy.is_of_larger_model) add_unmatched(graph, sites, lane);
  }
  description.step_graph = &graph;
  description.sites = &sites;
  description.options = &options;
}

}  // namespace lockstep
