// See joined_run.h. Ids are given anew: nodes n0, n1, ... through all parts, inputs likewise.
#include "src/jobs/joined_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <utility>

#include "src/capture/capture.h"
#include "src/core/error.h"
#include "src/core/text.h"
#include "src/graph/json.h"
#include "src/policy/twin_lane.h"

namespace lockstep {
namespace {

constexpr char kBatchMark = '@';  // before the batch in the name of a part of another graph
constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

// What the run files of one part have in common.
struct Group {
  std::string module, name;  // name: under which its layers stand
  std::string graph_json;
  SiteTable sites;
  std::vector<std::string> watched;
  ScriptLines lines;
  std::vector<std::vector<std::string>> formats, device_sums;  // by lane and site
  // By step of the joined run: run files, which share the lanes among them, and a step of theirs.
  std::map<size_t, std::pair<std::vector<std::string>, int64_t>> batches;
  std::vector<int32_t> site_ids;  // in the joined table, by own id
  size_t first_parameter = 0, parameters = 0, first_watched = 0;
};

// The names of a part in the joined run.
class Names {
 public:
  Names(const Group& group, const Graph& graph, size_t& inputs, size_t& nodes) : group_(group) {
    for (const GraphInput& input : graph.inputs) {
      ids_[input.id] = is_seed(input.id) ? std::string(kPassSeedPrefix) + group.name
                                         : fmt::format("in{}", inputs++);
    }
    ids_[std::string(kLossSeedId)] = std::string(kPassSeedPrefix) + group.name;
    for (const Node& node : graph.nodes) ids_[node.id] = fmt::format("n{}", nodes++);
  }

  // A layer, parameter or buffer: paths in the model already, but for a group of another name.
  std::string path(const std::string& own) const {
    if (own.empty() || own == group_.module) return group_.name;
    if (own.starts_with(group_.module + ".")) return group_.name + own.substr(group_.module.size());
    return group_.name + "." + own;
  }
  std::string other(const std::string& own) const { return group_.name + "/" + own; }
  std::string node(const std::string& id) const {
    const auto found = ids_.find(id);
    return found == ids_.end() ? other(id) : found->second;
  }
  std::string value(const std::string& id) const {
    if (id.empty()) return id;
    if (id.starts_with("p:") || id.starts_with("b:")) return id.substr(0, 2) + path(id.substr(2));
    if (id.starts_with("c:")) return "c:" + other(id.substr(2));
    const auto [base, index] = split_value_id(id);
    return index == 0 ? node(base) : fmt::format("{}.{}", node(base), index);
  }
  // Of a site: a node of the graph, or "storage:p:NAME", "optimizer:NAME".
  std::string place(const std::string& own) const {
    if (const auto found = ids_.find(own); found != ids_.end()) return found->second;
    const size_t colon = own.find(':');
    if (colon == std::string::npos) return own;
    const std::string kind = own.substr(0, colon + 1), rest = own.substr(colon + 1);
    if (kind == "storage:") {
      const bool is_value =
          rest.starts_with("p:") || rest.starts_with("b:") || rest.starts_with("c:");
      return kind + (is_value ? value(rest) : other(rest));
    }
    return kind + path(rest);
  }

 private:
  const Group& group_;
  std::map<std::string, std::string> ids_;
};

void rename(Node& node, const Names& names) {
  node.id = names.node(node.id);
  node.layer = names.path(node.layer);
  if (node.is_backward()) node.forward_node = names.node(node.forward_node);
  for (std::string& input : node.inputs) input = names.value(input);
  for (std::string& value : node.gradient_of) value = names.value(value);
}

// Adds a part's step graph.
void add_graph(Graph graph, const Names& names, const std::string& name, int pass, Graph& joined) {
  BackwardPass backward{.name = name,
                        .loss = names.value(graph.loss),
                        .seed = std::string(kPassSeedPrefix) + name,
                        .gradients = {}};
  for (GraphInput& input : graph.inputs) {
    input.id = names.node(input.id);
    if (!is_seed(input.id)) input.path = names.other(input.path);
    joined.inputs.push_back(std::move(input));
  }
  for (Parameter& parameter : graph.parameters) {
    parameter.name = names.path(parameter.name);
    parameter.layer = names.path(parameter.layer);
    joined.parameters.push_back(std::move(parameter));
  }
  for (Buffer& buffer : graph.buffers) {
    buffer.name = names.path(buffer.name);
    buffer.layer = names.path(buffer.layer);
    joined.buffers.push_back(std::move(buffer));
  }
  for (Constant& constant : graph.constants) {
    constant.name = names.other(constant.name);
    joined.constants.push_back(std::move(constant));
  }
  for (Node& node : graph.nodes) {
    rename(node, names);
    if (node.is_backward()) node.pass = pass;
    joined.nodes.push_back(std::move(node));
  }
  for (const Mutation& m : graph.mutations) {
    joined.mutations.push_back({names.path(m.buffer), names.value(m.value)});
  }
  for (const auto& [parameter, value] : graph.gradients) {
    backward.gradients[names.path(parameter)] = names.value(value);
  }
  joined.gradients.insert(backward.gradients.begin(), backward.gradients.end());
  joined.outputs["loss/" + name] = backward.loss;
  for (const auto& [output, value] : graph.outputs) {
    if (!output.starts_with("loss/")) joined.outputs[names.other(output)] = names.value(value);
  }
  joined.passes.push_back(std::move(backward));
}

bool same_sites(const SiteTable& a, const SiteTable& b) {
  return std::ranges::equal(a.sites, b.sites, [](const Site& x, const Site& y) {
    return x.node == y.node && x.point == y.point && x.index == y.index && x.shape == y.shape;
  });
}

LaneDescription description_of(const LaneInfo& info) {
  LaneDescription lane{.name = info.name,
                       .policy = policy_of(info),
                       .engine = info.engine,
                       .target = info.target,
                       .is_reference = info.is_reference,
                       .fallbacks = info.fallbacks,
                       .memory = info.memory.value_or(MemoryFacts{}),
                       .warnings = info.warnings,
                       .site_formats = {},
                       .device_sums = {},
                       .scaler_losses = {}};
  return lane;
}

void add_memory(const MemoryFacts& more, MemoryFacts& to) {
  to.weights += more.weights;
  to.master_weights += more.master_weights;
  to.gradients += more.gradients;
  to.optimizer_state += more.optimizer_state;
  to.kahan_terms += more.kahan_terms;
  to.activations += more.activations;
}

// The lanes of a part, from all its run files: the reference, then as listed, twins and the
// captured one last. Requires: files of one graph.
std::vector<LaneInfo> lanes_of(const std::vector<RunFile>& runs) {
  std::vector<LaneInfo> lanes;
  for (const RunFile& run : runs) {
    for (const LaneInfo& info : run.lanes()) {
      if (std::ranges::find(lanes, info.name, &LaneInfo::name) == lanes.end())
        lanes.push_back(info);
    }
  }
  const auto place = [](const LaneInfo& lane) {
    constexpr int kReference = 0, kListed = 1, kTwin = 2, kCaptured = 3;
    if (lane.is_reference) return kReference;
    if (lane.name == kCapturedLane) return kCaptured;
    return twin_number(lane.name) > 0 ? kTwin : kListed;
  };
  std::ranges::stable_sort(lanes, {}, place);
  return lanes;
}

// Throws: InputError: the files are not of one step graph.
std::vector<RunFile> open_runs(const std::vector<std::string>& paths) {
  std::vector<RunFile> runs;
  for (const std::string& path : paths) {
    const RunFile& run = runs.emplace_back(path);
    if (run.graph_json() != runs.front().graph_json() || run.steps() != runs.front().steps() ||
        !same_sites(run.sites(), runs.front().sites())) {
      throw InputError(
          fmt::format("run files '{}' and '{}': are of different steps", paths.front(), path),
          "replay the parts to a new run file");
    }
  }
  return runs;
}

}  // namespace

struct JoinedRun::Impl {
  std::vector<Group> groups;
  Graph graph;
  SiteTable sites;
  RunOptions options;
  RunDescription description;
  std::vector<std::string> losses;                           // as loss_names(): sorted
  std::map<std::pair<std::string, int64_t>, size_t> row_of;  // of a batch's steps, as they come

  void take(const PartRun& part);
  void take_lanes(const std::vector<LaneInfo>& own, const std::string& path, bool is_new);
  void join();
  void join_sites(const std::vector<Names>& names);
  void add_step(const Group& group, size_t row, StepRecord& record) const;
};

void JoinedRun::Impl::take_lanes(const std::vector<LaneInfo>& own, const std::string& path,
                                 bool is_new) {
  std::vector<LaneDescription>& lanes = description.lanes;
  if (groups.empty()) {
    for (const LaneInfo& info : own) lanes.push_back(description_of(info));
    return;
  }
  const auto same = [](const LaneDescription& a, const LaneInfo& b) { return a.name == b.name; };
  if (!std::ranges::equal(lanes, own, same)) {
    throw InputError(fmt::format("run file '{}': has other lanes than the parts before it", path),
                     "replay all parts with the same lanes");
  }
  for (size_t i = 0; is_new && i < lanes.size(); ++i) {
    add_memory(own[i].memory.value_or(MemoryFacts{}), lanes[i].memory);
    // What no part has is wrong with the policy.
    std::erase_if(lanes[i].warnings, [&](const std::string& known) {
      return known.ends_with(kInThisPart) &&
             std::ranges::find(own[i].warnings, known) == own[i].warnings.end();
    });
    for (const std::string& warning : own[i].warnings) {
      if (warning.ends_with(kInThisPart)) continue;
      if (std::ranges::find(lanes[i].warnings, warning) == lanes[i].warnings.end()) {
        lanes[i].warnings.push_back(warning);
      }
    }
  }
}

void JoinedRun::Impl::take(const PartRun& part) {
  const std::vector<RunFile> runs = open_runs(part.paths);
  const RunFile& run = runs.front();
  const std::vector<LaneInfo> lanes = lanes_of(runs);
  const auto is_same = [&](const Group& g) {
    return g.module == part.module && g.graph_json == run.graph_json() &&
           same_sites(g.sites, run.sites());
  };
  auto found = std::ranges::find_if(groups, is_same);
  const bool is_new = found == groups.end();
  take_lanes(lanes, part.paths.front(), is_new);
  if (is_new) {
    if (groups.empty()) {
      options = run.options();
      options.lanes.clear();
      for (const LaneInfo& lane : lanes) {
        if (lane.name != kCapturedLane) options.lanes.push_back(lane.name);
      }
    }
    Group group;
    group.module = group.name = part.module;
    const auto overlaps = [&](const Group& g) {
      return g.module.starts_with(group.module + ".") || group.module.starts_with(g.module + ".");
    };
    if (std::ranges::any_of(groups, overlaps)) group.name += kAlone;
    if (std::ranges::find(groups, group.name, &Group::name) != groups.end()) {
      group.name += kBatchMark + part.batch;
    }
    group.graph_json = run.graph_json();
    group.sites = run.sites();
    group.watched = run.watched();
    group.lines = run.lines();
    for (const LaneInfo& lane : lanes) {
      group.formats.push_back(lane.site_formats);
      group.device_sums.push_back(lane.device_sums);
    }
    groups.push_back(std::move(group));
    found = groups.end() - 1;
  }
  for (const RunFile& one : runs) {  // policy files' texts
    options.policy_texts.insert(one.options().policy_texts.begin(),
                                one.options().policy_texts.end());
  }
  for (int64_t step = 0; step < run.steps(); ++step) {
    const auto row = row_of.try_emplace({part.batch, step}, row_of.size()).first->second;
    found->batches[row] = {part.paths, step};
  }
}

// Storage sites come first in a table, then those of the parts, one after the other.
void JoinedRun::Impl::join_sites(const std::vector<Names>& names) {
  for (Group& group : groups) group.site_ids.resize(group.sites.sites.size());
  for (const bool of_storage : {true, false}) {
    for (Group& group : groups) {
      for (const Site& site : group.sites.sites) {
        if (is_storage(site) != of_storage) continue;
        group.site_ids[static_cast<size_t>(site.id)] = static_cast<int32_t>(sites.sites.size());
        Site& joined = sites.sites.emplace_back(site);
        joined.id = group.site_ids[static_cast<size_t>(site.id)];
        const Names& own = names[static_cast<size_t>(&group - groups.data())];
        joined.layer = own.path(site.layer);
        joined.node = own.place(site.node);
        joined.value = own.value(site.value);
      }
    }
  }
  for (const Group& group : groups) {
    for (const Site& site : group.sites.sites) {
      Site& joined = sites.sites[static_cast<size_t>(group.site_ids[static_cast<size_t>(site.id)])];
      for (int32_t& feed : joined.feeds) feed = group.site_ids[static_cast<size_t>(feed)];
    }
  }
}

void JoinedRun::Impl::join() {
  graph.name = "parts";
  size_t inputs = 0, nodes = 0;
  std::vector<Names> names;
  for (Group& group : groups) {
    Graph part = graph_from_json(group.graph_json);
    const Names& own = names.emplace_back(group, part, inputs, nodes);
    group.first_parameter = graph.parameters.size();
    group.parameters = part.parameters.size();
    group.first_watched = description.watched.size();
    for (const std::string& value : group.watched) {
      description.watched.push_back(group.name + " " + value);
    }
    for (const ScriptLine& line : group.lines) {
      const auto is_same = [&](const ScriptLine& known) {
        return known.of == line.of && known.at == line.at;
      };
      if (std::ranges::none_of(description.lines, is_same)) description.lines.push_back(line);
    }
    const int pass = static_cast<int>(graph.passes.size());
    add_graph(std::move(part), own, group.name, pass, graph);
    if (graph.loss.empty()) {
      graph.loss = graph.passes.back().loss;
      continue;
    }
    Node sum{.id = fmt::format("n{}", nodes++),
             .op = "add",
             .inputs = {graph.loss, graph.passes.back().loss},
             .attributes = {},
             .outputs = {graph.type_of(graph.loss)},
             .layer = "",
             .source_line = "",
             .torch_op = "",
             .forward_node = "",
             .gradient_of = {}};
    graph.loss = sum.id;
    graph.nodes.push_back(std::move(sum));
  }
  join_sites(names);
  for (size_t l = 0; l < description.lanes.size(); ++l) {
    LaneDescription& lane = description.lanes[l];
    const auto gather = [&](const std::vector<std::vector<std::string>> Group::*texts,
                            std::vector<std::string>& to) {
      for (const Group& group : groups) {
        const std::vector<std::string>& own = (group.*texts)[l];
        if (own.empty()) continue;
        to.resize(sites.sites.size());
        for (size_t s = 0; s < own.size(); ++s) {
          to[static_cast<size_t>(group.site_ids[s])] = own[s];
        }
      }
    };
    gather(&Group::formats, lane.site_formats);
    gather(&Group::device_sums, lane.device_sums);
    const bool has_scaler = lane.policy.loss_scale.kind != LossScaleSpec().kind;
    if (has_scaler) {
      for (const Group& group : groups) lane.scaler_losses.push_back(group.name);
    }
  }
  losses = loss_names(graph);
}

std::string module_of_part(std::string_view name) {
  name = name.substr(0, name.find(kBatchMark));
  if (name.ends_with(kAlone)) name.remove_suffix(kAlone.size());
  return std::string(name);
}

JoinedRun::JoinedRun(std::vector<PartRun> runs) : impl_(std::make_unique<Impl>()) {
  for (const PartRun& run : runs) impl_->take(run);
  impl_->join();
}
JoinedRun::~JoinedRun() = default;

const RunDescription& JoinedRun::describe(std::string model, std::string hash) {
  Impl& impl = *impl_;
  std::vector<std::string> names;
  for (const Group& group : impl.groups) names.push_back(group.name);
  RunOptions& options = impl.options;
  options.model = std::move(model);
  options.capture_hash = std::move(hash);
  options.part = join(names, ", ");
  options.steps = static_cast<int64_t>(impl.row_of.size());
  options.accumulate = 1;
  options.measuring.sums_every = std::min<int64_t>(options.measuring.sums_every, 1);  // as each job
  RunDescription& run = impl.description;
  run.step_graph = &impl.graph;
  run.sites = &impl.sites;
  run.options = &options;
  run.data = fmt::format("parts of {}", options.model);
  return run;
}

// Adds what one batch of a part was in every lane.
void JoinedRun::Impl::add_step(const Group& group, size_t row, StepRecord& record) const {
  const auto& [paths, step] = group.batches.at(row);
  const std::vector<RunFile> runs = open_runs(paths);
  const auto loss = static_cast<size_t>(std::ranges::find(losses, group.name) - losses.begin());
  const auto number = static_cast<size_t>(&group - groups.data());
  for (size_t l = 0; l < record.lanes.size(); ++l) {
    const std::string& name = description.lanes[l].name;
    const auto run = std::ranges::find_if(runs, [&](const RunFile& one) {
      return std::ranges::find(one.lanes(), name, &LaneInfo::name) != one.lanes().end();
    });
    LaneStep own = run->step(run->lane_index(name), step);
    LaneStep& lane = record.lanes[l];
    lane.seconds += own.seconds;
    if (!own.alive) continue;
    const double all = own.loss * static_cast<double>(run->options().accumulate);
    lane.loss += all;
    lane.losses[loss] = all;
    if (lane.lr.empty()) lane.lr = own.lr;
    if (!std::isnan(own.gradient_norm)) {
      lane.gradient_norm =
          std::hypot(std::isnan(lane.gradient_norm) ? 0 : lane.gradient_norm, own.gradient_norm);
    }
    if (own.gradient_norms.size() == group.parameters) {
      lane.gradient_norms.resize(graph.parameters.size(), kNone);
      std::ranges::copy(own.gradient_norms, lane.gradient_norms.begin() +
                                                static_cast<std::ptrdiff_t>(group.first_parameter));
    }
    lane.attempts = std::max(lane.attempts, own.attempts);
    lane.device.merge(own.device);
    if (!own.scalers.empty()) {
      ScalerRecord scaler = own.scalers.front();
      if (scaler.culprit_site >= 0) {
        scaler.culprit_site = group.site_ids.at(static_cast<size_t>(scaler.culprit_site));
      }
      const bool has_own = !description.lanes[l].scaler_losses.empty();
      lane.scalers[has_own ? number : 0] = scaler;
    }
    for (size_t s = 0; s < own.sites.size(); ++s) {
      lane.sites[static_cast<size_t>(group.site_ids[s])] = std::move(own.sites[s]);
    }
    for (size_t w = 0; w < own.watched.size(); ++w) {
      lane.watched[group.first_watched + w] = own.watched[w];
    }
  }
}

void JoinedRun::tell(Observer& observer) const {
  const Impl& impl = *impl_;
  observer.on_start(impl.description);
  for (size_t row = 0; row < impl.row_of.size(); ++row) {
    StepRecord record;
    record.step = static_cast<int64_t>(row);
    for (const LaneDescription& description : impl.description.lanes) {
      LaneStep& lane = record.lanes.emplace_back();
      lane.losses.assign(impl.losses.size(), kNone);
      lane.scalers.resize(std::max<size_t>(1, description.scaler_losses.size()));
      lane.sites.resize(impl.sites.sites.size());
      lane.watched.resize(impl.description.watched.size());
    }
    for (const Group& group : impl.groups) {
      if (group.batches.contains(row)) impl.add_step(group, row, record);
    }
    observer.on_step(record);
  }
  observer.on_finish();
}

}  // namespace lockstep
