// See same_step.h. Both node lists are in execution order, so one walk over both matches them.
#include "src/graph/same_step.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>
#include <tuple>

#include "src/core/error.h"
#include "src/graph/infer.h"
#include "src/graph/op.h"

namespace lockstep {
namespace {

class Matching {
 public:
  Matching(const Graph& main, const Graph& other) : main_(main), other_(other) {}

  std::map<std::string, std::string> match() {
    require_same_names("parameter", main_.parameters, other_.parameters);
    require_same_names("buffer", main_.buffers, other_.buffers);
    size_t at = 0;
    for (const Node& node : other_.nodes) {
      while (at < main_.nodes.size() && !is_same(main_.nodes[at], node)) {
        if (!skip(main_.nodes[at])) {
          refuse(described(other_, node), described(main_, main_.nodes[at]));
        }
        ++at;
      }
      if (at == main_.nodes.size()) refuse(described(other_, node), "");
      main_of_[node.id] = main_.nodes[at++].id;
    }
    for (; at < main_.nodes.size(); ++at) {
      if (!skip(main_.nodes[at])) refuse(described(main_, main_.nodes[at]), "");
    }
    require_same_results();
    return std::move(main_of_);
  }

 private:
  template <typename Items>
  void require_same_names(std::string_view kind, const Items& in_main, const Items& in_other) {
    std::map<std::string, int> found;
    for (const auto& item : in_main) ++found[item.name];
    for (const auto& item : in_other) --found[item.name];
    for (const auto& [name, more] : found) {
      if (more == 0) continue;
      throw InputError(
          fmt::format("{} '{}' is used with one batch shape but not with another", kind, name));
    }
  }

  // A node of `main` that `other` omits: its operand replaces its output.
  bool skip(const Node& node) {
    if (!find_op(node.op).elements.may_vanish) return false;
    stands_for_[node.id] = node.inputs.at(0);
    return true;
  }

  // The value of `main` that replaces `value` if its producer was skipped.
  std::string behind_skipped(std::string value) const {
    for (auto it = stands_for_.find(value); it != stands_for_.end(); it = stands_for_.find(value)) {
      value = it->second;
    }
    return value;
  }

  // Where a value comes from, as a text that is the same in both graphs.
  std::string origin(const Graph& graph, const std::string& value) const {
    if (value.starts_with("c:")) return "c:";  // constants depend on the shape; names may differ
    for (const GraphInput& input : graph.inputs) {
      if (input.id == value) return "in:" + input.path;
    }
    const auto [id, index] = split_value_id(value);
    const auto node = main_of_.find(id);
    if (&graph == &main_ || node == main_of_.end()) return value;
    return index == 0 ? node->second : fmt::format("{}.{}", node->second, index);
  }
  bool is_same_value(const std::string& of_main, const std::string& of_other) const {
    return origin(main_, behind_skipped(of_main)) == origin(other_, of_other);
  }

  bool is_same(const Node& a, const Node& b) const {
    const auto kind = [](const Node& node) {
      return std::tuple(node.op, node.is_backward(), node.pass, node.inputs.size(),
                        node.outputs.size());
    };
    // A sum of gradients belongs to the layer that reads the value first, which may be omitted.
    const bool same_layer = a.is_backward() || layer_of(main_, a) == layer_of(other_, b);
    if (kind(a) != kind(b) || !same_layer) return false;
    for (size_t i = 0; i < a.inputs.size(); ++i) {
      if (!is_same_value(a.inputs[i], b.inputs[i])) return false;
    }
    return true;
  }

  void require_same_results() const {
    bool same = is_same_value(main_.loss, other_.loss) &&
                main_.mutations.size() == other_.mutations.size() &&
                pass_count(main_) == pass_count(other_);
    for (size_t i = 0; same && i < main_.mutations.size(); ++i) {
      const Mutation &a = main_.mutations[i], &b = other_.mutations[i];
      same = a.buffer == b.buffer && is_same_value(a.value, b.value);
    }
    for (size_t pass = 0; same && pass < pass_count(main_); ++pass) {
      const auto &a = pass_gradients(main_, pass), &b = pass_gradients(other_, pass);
      same = a.size() == b.size();
      for (const auto& [name, value] : b) {
        same = same && a.contains(name) && is_same_value(a.at(name), value);
      }
    }
    if (!same) {
      throw InputError("the loss, gradients or buffers come from different places in the model");
    }
  }

  std::string described(const Graph& graph, const Node& node) const {
    return fmt::format("{} in layer '{}'{}", node.op, layer_of(graph, node),
                       node.source_line.empty() ? "" : " (" + node.source_line + ")");
  }
  [[noreturn]] static void refuse(const std::string& missing, const std::string& there) {
    throw InputError(
        fmt::format("{} of one batch shape has no counterpart in the other, which has {} there",
                    missing, there.empty() ? "nothing more" : there));
  }

  const Graph &main_, &other_;
  std::map<std::string, std::string> main_of_;     // node ids
  std::map<std::string, std::string> stands_for_;  // skipped nodes' outputs -> their operands
};

}  // namespace

std::map<std::string, std::string> match_nodes(const Graph& main, const Graph& other) {
  return Matching(main, other).match();
}

namespace {

// Visits nodes in execution order with a text for each one's place in the model.
template <typename Visit>
void for_each_place(const Graph& graph, const Visit& visit) {
  std::map<std::string, int> calls;
  for (const Node& node : graph.nodes) {
    const std::string kind =
        fmt::format("{}|{}|{}|{}|{}|{}", layer_of(graph, node), node.op, node.is_backward(),
                    node.pass, node.inputs.size(), node.outputs.size());
    visit(node.id, fmt::format("{}|{}", kind, calls[kind]++));
  }
}

}  // namespace

PathNodes::PathNodes(const Graph& main) {
  for_each_place(main,
                 [&](const std::string& id, const std::string& place) { known_[place] = id; });
}

std::map<std::string, std::string> PathNodes::match(const Graph& other, size_t number) {
  std::map<std::string, std::string> found;
  for_each_place(other, [&](const std::string& id, const std::string& place) {
    found[id] = known_.try_emplace(place, node_of_other_path(number, id)).first->second;
  });
  return found;
}

using Place = std::tuple<std::string, Point, int>;  // of a site: node, point, index

void add_sites(SiteTable& table, const SiteTable& other,
               const std::map<std::string, std::string>& nodes) {
  const auto place_of = [&](const Site& site) {
    return Place(is_in_graph(site) ? nodes.at(site.node) : site.node, site.point, site.index);
  };
  std::map<Place, int32_t> known;
  for (const Site& site : table.sites) known[{site.node, site.point, site.index}] = site.id;
  for (const Site& site : other.sites) {
    if (!is_in_graph(site) || known.contains(place_of(site))) continue;
    Site added = site;
    added.id = static_cast<int32_t>(table.sites.size());
    added.node = nodes.at(site.node);
    added.value = fmt::format("{}/{}", added.node, site.value);
    added.feeds.clear();
    for (const int32_t feed : site.feeds) {
      const auto at = known.find(place_of(other.sites[static_cast<size_t>(feed)]));
      if (at != known.end()) added.feeds.push_back(at->second);
    }
    known[{added.node, added.point, added.index}] = added.id;
    table.sites.push_back(std::move(added));
  }
}

SiteTable sites_numbered_as(const SiteTable& main_sites, const SiteTable& other_sites,
                            const std::map<std::string, std::string>& nodes) {
  std::map<Place, const Site*> found;
  for (const Site& site : other_sites.sites) {
    if (is_in_graph(site)) found[{nodes.at(site.node), site.point, site.index}] = &site;
  }
  std::map<std::string, const Site*> stored;
  for (const Site& site : other_sites.sites) {
    if (is_storage(site)) stored[site.node] = &site;
  }
  // Sites of updates and of exchanged gradients belong to parameters and do not change.
  SiteTable table = main_sites;
  size_t taken = 0;
  for (Site& site : table.sites) {
    if (is_storage(site)) {
      const auto there = stored.find(site.node);
      site.value = there == stored.end() ? "" : there->second->value;
      if (there != stored.end()) site.shape = there->second->shape;
      continue;
    }
    if (!is_in_graph(site)) continue;
    const auto at = found.find({site.node, site.point, site.index});
    if (at == found.end()) {
      site.node.clear();
      continue;
    }
    const Site& there = *at->second;
    site.node = there.node;
    site.value = there.value;
    site.shape = there.shape;
    site.stat_exempt = there.stat_exempt;
    ++taken;
  }
  if (taken != found.size()) throw std::logic_error("sites of matched nodes without a place");
  return table;
}

std::optional<size_t> first_other_site(const SiteTable& a, const SiteTable& b) {
  const auto is_same = [](const Site& x, const Site& y) {
    const auto place = [](const Site& s) {
      return std::tie(s.layer, s.op, s.role, s.point, s.node, s.index, s.value, s.shape, s.feeds,
                      s.scaled, s.stat_exempt);
    };
    return place(x) == place(y);
  };
  const auto [x, y] = std::ranges::mismatch(a.sites, b.sites, is_same);
  if (x == a.sites.end() && y == b.sites.end()) return std::nullopt;
  return static_cast<size_t>(x - a.sites.begin());
}

}  // namespace lockstep
