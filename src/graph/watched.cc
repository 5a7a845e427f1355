// See watched.h.
#include "src/graph/watched.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "src/core/error.h"
#include "src/core/text.h"

namespace lockstep {
namespace {

bool is_inside(std::string_view layer, std::string_view module) {
  return layer.starts_with(module) &&
         (layer.size() == module.size() || layer[module.size()] == '.');
}

// "blocks.0.attn": "blocks", "blocks.0", "blocks.0.attn".
std::vector<std::string> modules_around(const std::string& layer) {
  std::vector<std::string> found;
  for (size_t dot = layer.find('.'); dot != std::string::npos; dot = layer.find('.', dot + 1)) {
    found.push_back(layer.substr(0, dot));
  }
  if (!layer.empty()) found.push_back(layer);
  return found;
}

// A name without its prefix.
struct WatchedName {
  std::string name;
  bool is_watched = false, log_probs = false;
};
WatchedName named_value(const std::string& text) {
  for (const std::string_view prefix : {kWatchPrefix, kLogProbsPrefix}) {
    if (text.starts_with(prefix)) {
      return {text.substr(prefix.size()), true, prefix == kLogProbsPrefix};
    }
  }
  return {text};
}

// What one graph computes in its forward pass that can be watched, by name.
struct Watchable {
  std::map<std::string, WatchedValue::Place> modules, nodes;
};

Watchable watchable(const Graph& graph) {
  Watchable found;
  std::map<std::string, int> index_of;
  std::map<std::string, std::vector<const Node*>> readers;  // by value
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    const Node& node = graph.nodes[i];
    if (node.is_backward()) continue;
    index_of[node.id] = static_cast<int>(i);
    for (const std::string& id : node.inputs) readers[id].push_back(&node);
  }
  const auto is_result = [&](const std::string& id) {
    return id == graph.loss ||
           std::ranges::any_of(graph.outputs, [&](const auto& o) { return o.second == id; });
  };
  std::map<std::string, bool> is_read;  // by module: whether its place so far is read outside of it
  for (const Node& node : graph.nodes) {
    if (node.is_backward()) continue;
    const int index = index_of.at(node.id);
    for (size_t k = node.outputs.size(); k-- > 0;) {
      if (node.outputs[k].element != ElementType::kFloat) continue;
      const std::string id = output_id(node, k);
      found.nodes[node.id] = {index, id};  // the first output last
      for (const std::string& module : modules_around(node.layer)) {
        const bool leaves = is_result(id) || std::ranges::any_of(readers[id], [&](const Node* n) {
                              return !is_inside(n->layer, module);
                            });
        if (!leaves && is_read[module]) continue;
        found.modules[module] = {index, id};
        is_read[module] = leaves;
      }
    }
  }
  for (const auto& [name, value] : graph.outputs) {
    const WatchedName named = named_value(name);
    const auto node = index_of.find(split_value_id(value).first);
    if (!named.is_watched || node == index_of.end()) continue;
    if (graph.type_of(value).element != ElementType::kFloat) continue;
    found.modules[named.name] = {node->second, value};
  }
  return found;
}

}  // namespace

std::vector<WatchedValue> find_watched(std::span<const Graph* const> graphs,
                                       const std::vector<std::string>& patterns) {
  std::vector<WatchedName> asked;  // by the step
  for (const Graph* graph : graphs) {
    for (const auto& [name, value] : graph->outputs) {
      if (WatchedName named = named_value(name); named.is_watched)
        asked.push_back(std::move(named));
    }
  }
  if (asked.empty() && patterns.empty()) return {};
  std::vector<Watchable> known;
  std::vector<std::string> names;
  for (const Graph* graph : graphs) {
    known.push_back(watchable(*graph));
    for (const auto& [name, place] : known.back().modules) {
      if (std::ranges::count(names, name) == 0) names.push_back(name);
    }
  }
  std::vector<WatchedValue> out;
  ProblemList problems("watch");
  const auto add = [&](const std::string& name, bool log_probs, auto places) {
    const auto there = std::ranges::find(out, name, &WatchedValue::name);
    if (there != out.end()) {
      there->log_probs = there->log_probs || log_probs;
      return true;
    }
    WatchedValue value{name, log_probs, {}};
    bool found = false;
    for (const Watchable& graph : known) {
      const auto place = (graph.*places).find(name);
      const bool is_here = place != (graph.*places).end();
      value.places.push_back(is_here ? place->second : WatchedValue::Place{});
      found = found || is_here;
    }
    if (found) out.push_back(std::move(value));
    return found;
  };
  for (const WatchedName& named : asked) {
    if (add(named.name, named.log_probs, &Watchable::modules)) continue;
    problems.add(fmt::format("'{}': a floating value of the forward pass required", named.name));
  }
  for (const std::string& written : patterns) {
    const WatchedName pattern = named_value(written);
    bool found = false;
    for (const std::string& name : names) {
      if (!glob_match(pattern.name, name)) continue;
      found = add(name, pattern.log_probs, &Watchable::modules);
    }
    if (found || add(pattern.name, pattern.log_probs, &Watchable::nodes)) continue;
    problems.add(fmt::format("'{}': no module or node of the forward pass has this name", written),
                 did_you_mean(pattern.name, names));
  }
  if (out.size() > kMostWatched) {
    problems.add(fmt::format("{} values, at most {} required", out.size(), kMostWatched),
                 "name fewer modules; * matches dots, too");
  }
  problems.throw_if_any();
  return out;
}

}  // namespace lockstep
