// See run_facts.h.
#include "analysis/pair/run_facts.h"

#include <fmt/format.h>

#include <type_traits>
#include <utility>
#include <variant>

#include "src/graph/json.h"
#include "src/policy/twin_lane.h"

namespace lockstep {
namespace {

std::string attribute_text(const Attribute& attribute) {
  return std::visit(
      [](const auto& value) {
        using T = std::decay_t<decltype(value)>;
        if constexpr (std::is_same_v<T, std::vector<int64_t>>) {
          std::string text;
          for (const int64_t v : value) text += fmt::format("{}{}", text.empty() ? "" : ",", v);
          return "[" + text + "]";
        } else {
          return fmt::format("{}", value);
        }
      },
      attribute);
}

std::string shape_text(const Shape& shape) {
  std::string text;
  for (const int64_t extent : shape) text += fmt::format("{}{}", text.empty() ? "" : "x", extent);
  return text.empty() ? "scalar" : text;
}

std::vector<NodeFacts> node_facts(const Graph& graph) {
  std::vector<NodeFacts> facts;
  for (const Node& node : graph.nodes) {
    if (node.is_backward()) continue;
    NodeFacts& out = facts.emplace_back();
    out.op = node.op;
    out.layer = layer_of(graph, node);
    out.source_line = node.source_line;
    for (const auto& [name, value] : node.attributes) out.attributes[name] = attribute_text(value);
    if (node.autocast != AutocastRegion::kUnsaid) {
      out.attributes[kAutocastAttribute] = node.autocast == AutocastRegion::kOn ? "on" : "off";
    }
  }
  return facts;
}

}  // namespace

std::string SiteFacts::label() const {
  return fmt::format("{} {} {} {}", layer.empty() ? "(no layer)" : layer, op, role, point);
}

std::vector<LaneFacts> lane_facts(std::span<const LaneInfo> lanes) {
  std::vector<LaneFacts> facts;
  for (const LaneInfo& lane : lanes) {
    facts.push_back({lane.name, lane.engine, lane.target, lane.policy_text});
  }
  return facts;
}

std::vector<SiteFacts> site_facts(const SiteTable& table) {
  std::vector<SiteFacts> facts;
  for (const Site& site : table.sites) {
    facts.push_back({.layer = site.layer,
                     .op = site.op,
                     .role = std::string(to_string(site.role)),
                     .point = std::string(to_string(site.point)),
                     .index = site.index,
                     .shape = shape_text(site.shape),
                     .source_line = site.source_line});
  }
  return facts;
}

std::vector<ParameterFacts> parameter_facts(const Graph& graph) {
  std::vector<ParameterFacts> facts;
  for (const Parameter& p : graph.parameters) facts.push_back({p.name, shape_text(p.type.shape)});
  return facts;
}

RunFacts facts_of(const RunFile& run) {
  const Graph graph = graph_from_json(run.graph_json());
  return {.options = run.options(),
          .steps = run.steps(),
          .environment = run.environment(),
          .lanes = lane_facts(run.lanes()),
          .nodes = node_facts(graph),
          .sites = site_facts(run.sites()),
          .parameters = parameter_facts(graph),
          .data = run.data(),
          .batches_hash = run.batches_hash(),
          .lines = run.lines(),
          .step_graph = run.graph_json(),
          .site_table = run.sites()};
}

RunFacts facts_without_twins(const RunFile& run) {
  RunFacts facts = facts_of(run);
  std::erase_if(facts.lanes, [](const LaneFacts& lane) { return twin_number(lane.name) > 0; });
  return facts;
}

}  // namespace lockstep
