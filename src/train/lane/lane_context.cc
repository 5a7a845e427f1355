// See lane_context.h.
#include "src/train/lane/lane_context.h"

#include "src/train/loss_passes.h"
#include "src/update/schedules.h"

namespace lockstep {

LaneContext make_lane_context(const Graph& step_graph, const SiteTable& sites,
                              const RunOptions& options, const CapturedLoop* loop,
                              std::span<const StepGraph> other_shapes) {
  LaneContext context{&step_graph,
                      &sites,
                      &options,
                      {},
                      {},
                      sites.storage_sites(),
                      loss_names(step_graph),
                      sites_of_passes(step_graph, sites),
                      loop,
                      other_shapes};
  context.groups =
      loop == nullptr ? optimizer_groups(options.optimizer, options.groups) : loop->groups.front();
  for (const Parameter& parameter : step_graph.parameters) {
    LaneContext::Update& found = context.updates[parameter.name];
    if (loop == nullptr) {
      found.group = group_of(parameter, options.groups);
    } else if (const auto it = loop->group_of.find(parameter.name); it != loop->group_of.end()) {
      found.group = it->second;  // in no group: no gradient, never stepped
    }
    found.update = sites.find_update(parameter.name, Role::kUpdate);
    found.master = sites.find_update(parameter.name, Role::kMasterWeight);
    found.weight = sites.find_update(parameter.name, Role::kWeight);
    for (int pass = 0; pass < static_cast<int>(pass_count(step_graph)); ++pass) {
      found.entering.push_back(sites.find_all_reduce(parameter.name, Point::kOperand, pass));
      found.reduced.push_back(sites.find_all_reduce(parameter.name, Point::kOutput, pass));
    }
    for (size_t i = 0; i < context.groups[found.group].states(parameter.type.shape).size(); ++i) {
      found.states.push_back(
          sites.find_update(parameter.name, Role::kOptimizerState, static_cast<int>(i)));
    }
  }
  return context;
}

const HyperNumbers& LaneContext::numbers(size_t group, int64_t step) const {
  return loop == nullptr ? groups[group].numbers : loop->groups[loop->at(step)][group].numbers;
}

const RecordedUpdate* LaneContext::recorded(const std::string& parameter, int64_t step) const {
  if (loop == nullptr || loop->updates.empty()) return nullptr;
  const auto& updates = loop->updates[loop->at(step)];
  const auto found = updates.find(parameter);
  return found == updates.end() ? nullptr : &found->second;
}

int64_t LaneContext::micro_batches(int64_t step) const {
  if (loop == nullptr) return options->accumulate;
  return static_cast<int64_t>(loop->loss_divisor[loop->at(step)].size());
}

size_t LaneContext::graph_of(int64_t step, int64_t micro_batch) const {
  return loop == nullptr ? 0 : loop->graph_of[loop->at(step)][static_cast<size_t>(micro_batch)];
}

const Graph& LaneContext::graph(size_t number) const {
  return number == 0 ? *step_graph : other_shapes[number - 1].graph;
}

double LaneContext::loss_divisor(int64_t step, int64_t micro_batch) const {
  if (loop == nullptr) return static_cast<double>(options->accumulate);
  return loop->loss_divisor[loop->at(step)][static_cast<size_t>(micro_batch)];
}

double LaneContext::lr(size_t group, int64_t step) const {
  if (groups[group].optimizer == &recorded_updates()) return kNotRecorded;
  if (loop != nullptr) return numbers(group, step)["lr"];
  return scheduled_lr(options->schedule, groups[group].numbers["lr"], step, options->steps);
}

}  // namespace lockstep
