// See model_identity.h.
#include "analysis/pair/model_identity.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <set>
#include <tuple>

#include "analysis/pair/check_setup.h"
#include "src/core/counted.h"
#include "src/core/text.h"
#include "src/graph/json.h"
#include "src/graph/op.h"
#include "src/policy/twin_lane.h"

namespace lockstep {
namespace {

constexpr std::string_view kBatchNormEps = "batch_norm eps";  // of setup_in_words()
constexpr size_t kNamedLayers = 3;                            // of a change, by name
constexpr size_t kNamedChanges = 12;                          // ops that only one side has
// Sequences are aligned by a table of n m numbers; of longer ones, what lies
// between an equal head and an equal tail has no counterpart.
constexpr size_t kMostAligned = size_t{1} << 26;

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

// The longest common subsequence of two sequences: pairs of positions, ascending.
std::vector<std::pair<size_t, size_t>> align(size_t n, size_t m,
                                             const std::function<bool(size_t, size_t)>& equal) {
  std::vector<std::pair<size_t, size_t>> pairs;
  size_t head = 0;
  while (head < n && head < m && equal(head, head)) pairs.emplace_back(head, head), ++head;
  size_t tail = 0;
  while (tail + head < n && tail + head < m && equal(n - 1 - tail, m - 1 - tail)) ++tail;
  const size_t rows = n - head - tail, columns = m - head - tail;
  if (rows > 0 && columns > 0 && rows * columns <= kMostAligned) {
    std::vector<uint32_t> best((rows + 1) * (columns + 1), 0);
    const auto at = [&](size_t i, size_t j) -> uint32_t& { return best[i * (columns + 1) + j]; };
    for (size_t i = rows; i-- > 0;) {
      for (size_t j = columns; j-- > 0;) {
        at(i, j) =
            equal(head + i, head + j) ? at(i + 1, j + 1) + 1 : std::max(at(i + 1, j), at(i, j + 1));
      }
    }
    for (size_t i = 0, j = 0; i < rows && j < columns;) {
      if (equal(head + i, head + j)) {
        pairs.emplace_back(head + i++, head + j++);
      } else if (at(i + 1, j) >= at(i, j + 1)) {
        ++i;
      } else {
        ++j;
      }
    }
  }
  for (size_t k = tail; k-- > 0;) pairs.emplace_back(n - 1 - k, m - 1 - k);
  return pairs;
}

// Matches what is not matched yet: both sides' free positions, in their order, where `equal` holds.
template <typename Equal>
void match_free(std::vector<int>& to, std::vector<bool>& taken, const std::vector<size_t>& ours,
                const std::vector<size_t>& theirs, Equal equal) {
  const auto pairs = align(ours.size(), theirs.size(),
                           [&](size_t i, size_t j) { return equal(ours[i], theirs[j]); });
  for (const auto& [i, j] : pairs) {
    to[ours[i]] = static_cast<int>(theirs[j]);
    taken[theirs[j]] = true;
  }
}

template <typename Item>
std::map<std::string, std::vector<size_t>> by_layer(const std::vector<Item>& items,
                                                    const std::function<bool(size_t)>& is_free) {
  std::map<std::string, std::vector<size_t>> layers;
  for (size_t i = 0; i < items.size(); ++i) {
    if (is_free(i)) layers[items[i].layer].push_back(i);
  }
  return layers;
}

// Three passes, each over what is left: the same layer; a layer with another name and the same ops;
// anywhere, in order.
template <typename Item, typename Equal>
std::vector<int> match_by_layer(const std::vector<Item>& baseline, const std::vector<Item>& run,
                                Equal equal, std::map<std::string, std::string>& renamed) {
  std::vector<int> to(baseline.size(), -1);
  std::vector<bool> taken(run.size(), false);
  const auto is_free = [&](size_t i) { return to[i] < 0; };
  const auto is_open = [&](size_t j) { return !taken[j]; };
  const auto same = [&](size_t i, size_t j) { return equal(baseline[i], run[j]); };
  auto ours = by_layer(baseline, is_free), theirs = by_layer(run, is_open);
  std::vector<std::string> gone, fresh;  // layers of one side only, in the order of execution
  for (size_t i = 0; i < baseline.size(); ++i) {
    const std::string& layer = baseline[i].layer;
    if (!theirs.contains(layer) && std::ranges::count(gone, layer) == 0) gone.push_back(layer);
  }
  for (size_t j = 0; j < run.size(); ++j) {
    const std::string& layer = run[j].layer;
    if (!ours.contains(layer) && std::ranges::count(fresh, layer) == 0) fresh.push_back(layer);
  }
  for (const auto& [layer, positions] : ours) {
    const auto found = theirs.find(layer);
    if (found != theirs.end()) match_free(to, taken, positions, found->second, same);
  }
  for (const std::string& layer : gone) {
    for (std::string& candidate : fresh) {
      const std::vector<size_t>&a = ours[layer], &b = theirs[candidate];
      bool is_equal = !candidate.empty() && a.size() == b.size();
      for (size_t k = 0; is_equal && k < a.size(); ++k) is_equal = same(a[k], b[k]);
      if (!is_equal) continue;
      match_free(to, taken, a, b, same);
      renamed[layer] = candidate;
      candidate.clear();
      break;
    }
  }
  std::vector<size_t> left, open;
  for (size_t i = 0; i < baseline.size(); ++i) {
    if (is_free(i)) left.push_back(i);
  }
  for (size_t j = 0; j < run.size(); ++j) {
    if (is_open(j)) open.push_back(j);
  }
  match_free(to, taken, left, open, same);
  return to;
}

// Whether the op drops elements by a mask. A baseline of a later version may name ops unknown here.
bool drops_elements(const std::string& name) {
  const std::span<const OpDef> all = ops();
  const auto found = std::ranges::find(all, name, &OpDef::name);
  return found != all.end() && found->meaning.draws_mask != nullptr;
}

std::string named(const std::set<std::string>& layers) {
  std::string text;
  size_t count = 0;
  for (const std::string& layer : layers) {
    if (count++ == kNamedLayers) break;
    text += (text.empty() ? "" : ", ") + (layer.empty() ? std::string("(no layer)") : layer);
  }
  if (layers.size() > kNamedLayers) text += fmt::format(", +{} more", layers.size() - kNamedLayers);
  return text;
}

class Matcher {
 public:
  Matcher(const ModelIdentity& baseline, const ModelIdentity& run) : base_(baseline), run_(run) {}

  Counterparts find() {
    settings();
    nodes();
    sites();
    parameters();
    lanes();
    return std::move(out_);
  }

 private:
  void change(std::string text) { out_.changes.push_back(std::move(text)); }

  void setting(SettingChange change_of) {
    change(change_of.text);
    out_.settings.push_back(std::move(change_of));
  }

  void setting_of_loop(const std::string& name, const std::string& before,
                       const std::string& after) {
    if (name == kBatchNormEps) return;  // nodes() names it with its layers
    const auto value = [](const std::string& text) { return text.empty() ? "none" : text; };
    setting({fmt::format("{}: {} -> {}", name, value(before), value(after)), "", "", ""});
  }

  void settings() {
    std::map<std::string, std::string> ours(run_.settings.begin(), run_.settings.end());
    std::map<std::string, std::string> theirs(base_.settings.begin(), base_.settings.end());
    for (const auto& [name, before] : base_.settings) {
      const auto now = ours.find(name);
      const std::string after = now == ours.end() ? "" : now->second;
      if (after != before) setting_of_loop(name, before, after);
    }
    for (const auto& [name, now] : run_.settings) {
      if (!theirs.contains(name)) setting_of_loop(name, "", now);
    }
    if (base_.data != run_.data) change(fmt::format("data: {} -> {}", base_.data, run_.data));
  }

  void nodes() {
    std::map<std::string, std::string> renamed;
    const std::vector<int> to = match_by_layer(
        base_.nodes, run_.nodes,
        [](const NodeIdentity& a, const NodeIdentity& b) { return a.op == b.op; }, renamed);
    for (const auto& [before, after] : renamed) {
      change(fmt::format("layer {} is called {} here", before, after));
    }
    // By op, attribute and both values: the layers.
    struct Where {
      std::set<std::string> layers;
      size_t first = 0;  // node of the run
    };
    std::map<std::tuple<std::string, std::string, std::string, std::string>, Where> attributes;
    std::map<std::string, std::set<std::string>> gone, fresh;  // by op
    std::vector<bool> taken(run_.nodes.size(), false);
    for (size_t i = 0; i < to.size(); ++i) {
      const NodeIdentity& before = base_.nodes[i];
      if (to[i] < 0) {
        gone[before.op].insert(before.layer);
        continue;
      }
      const NodeIdentity& after = run_.nodes[static_cast<size_t>(to[i])];
      taken[static_cast<size_t>(to[i])] = true;
      std::set<std::string> names;
      for (const auto& [name, value] : before.attributes) names.insert(name);
      for (const auto& [name, value] : after.attributes) names.insert(name);
      for (const std::string& name : names) {
        const auto text = [&](const NodeIdentity& node) {
          const auto found = node.attributes.find(name);
          return found == node.attributes.end() ? std::string("none") : found->second;
        };
        if (text(before) == text(after)) continue;
        const auto [at, is_new] =
            attributes.try_emplace({before.op, name, text(before), text(after)});
        if (is_new) at->second.first = static_cast<size_t>(to[i]);
        at->second.layers.insert(after.layer);
      }
    }
    for (size_t j = 0; j < taken.size(); ++j) {
      if (!taken[j]) fresh[run_.nodes[j].op].insert(run_.nodes[j].layer);
    }
    for (const auto& [key, where] : attributes) {
      const auto& [op, name, before, after] = key;
      const NodeIdentity& node = run_.nodes[where.first];
      std::string text = fmt::format("{} {}: {} -> {} in {} ({})", op, name, before, after,
                                     counted(where.layers.size(), "layer"), named(where.layers));
      // Extents follow from the shapes of batches and weights.
      if (before.starts_with("[")) {
        change(std::move(text));
      } else {
        setting({std::move(text), node.layer, node.op, node.source_line});
      }
    }
    size_t shown = 0;
    const auto list = [&](const char* where, const auto& ops) {
      for (const auto& [op, layers] : ops) {
        std::string text = fmt::format("{} {}: {}", op, where, named(layers));
        if (drops_elements(op)) {  // no other op computes the same
          setting({std::move(text), layers.empty() ? "" : *layers.begin(), op, ""});
        } else if (shown++ < kNamedChanges) {
          change(std::move(text));
        }
      }
    };
    list("only in the baseline", gone);
    list("only here", fresh);
    if (shown > kNamedChanges) change(fmt::format("+{} more ops", shown - kNamedChanges));
  }

  void sites() {
    std::map<std::string, std::string> renamed;
    out_.sites = match_by_layer(
        base_.sites, run_.sites,
        [](const SiteIdentity& a, const SiteIdentity& b) { return a.is_of_same_kind(b); }, renamed);
    std::map<std::pair<std::string, std::string>, std::set<std::string>> shapes;
    for (size_t i = 0; i < out_.sites.size(); ++i) {
      if (out_.sites[i] < 0) continue;
      ++out_.sites_matched;
      const SiteIdentity& after = run_.sites[static_cast<size_t>(out_.sites[i])];
      if (base_.sites[i].shape != after.shape) {
        shapes[{base_.sites[i].shape, after.shape}].insert(after.layer);
      }
    }
    size_t shown = 0;
    for (const auto& [both, layers] : shapes) {
      if (shown++ == kNamedLayers) break;
      change(fmt::format("shape: {} -> {} in {} ({})", both.first, both.second,
                         counted(layers.size(), "layer"), named(layers)));
    }
    if (shapes.size() > kNamedLayers) {
      change(fmt::format("+{} more shapes", shapes.size() - kNamedLayers));
    }
    const size_t without = out_.sites.size() - out_.sites_matched;
    if (without > 0) {
      change(fmt::format("{} of the baseline's {} have no counterpart here and are not judged",
                         without, counted(out_.sites.size(), "site")));
    }
  }

  void parameters() {
    out_.parameters.assign(base_.parameters.size(), -1);
    std::vector<bool> taken(run_.parameters.size(), false);
    for (size_t i = 0; i < base_.parameters.size(); ++i) {
      const auto found =
          std::ranges::find(run_.parameters, base_.parameters[i].name, &ParameterIdentity::name);
      if (found == run_.parameters.end()) continue;
      out_.parameters[i] = static_cast<int>(found - run_.parameters.begin());
      taken[static_cast<size_t>(found - run_.parameters.begin())] = true;
      if (found->shape != base_.parameters[i].shape) {
        out_.no_match.push_back(fmt::format("parameter {}: shape {} -> {}", found->name,
                                            base_.parameters[i].shape, found->shape));
      }
    }
    // Renamed ones: in order, with the same shape.
    size_t next = 0;
    for (size_t i = 0; i < base_.parameters.size(); ++i) {
      if (out_.parameters[i] >= 0) continue;
      size_t j = next;
      while (j < taken.size() &&
             (taken[j] || run_.parameters[j].shape != base_.parameters[i].shape)) {
        ++j;
      }
      if (j == taken.size()) {
        out_.no_match.push_back(fmt::format("the run has no parameter {} ({})",
                                            base_.parameters[i].name, base_.parameters[i].shape));
        continue;
      }
      out_.parameters[i] = static_cast<int>(j);
      taken[j] = true;
      next = j + 1;
      change(fmt::format("parameter {} is called {} here", base_.parameters[i].name,
                         run_.parameters[j].name));
    }
    for (size_t j = 0; j < taken.size(); ++j) {
      if (taken[j]) continue;
      out_.no_match.push_back(fmt::format("the baseline has no parameter {} ({})",
                                          run_.parameters[j].name, run_.parameters[j].shape));
    }
  }

  void lanes() {
    out_.lanes.assign(base_.lanes.size(), -1);
    std::vector<bool> taken(run_.lanes.size(), false);
    const auto take = [&](size_t i, size_t j) {
      out_.lanes[i] = static_cast<int>(j);
      taken[j] = true;
    };
    for (size_t i = 0; i < base_.lanes.size(); ++i) {
      for (size_t j = 0; j < run_.lanes.size(); ++j) {
        if (!taken[j] && run_.lanes[j].name == base_.lanes[i].name) take(i, j);
      }
    }
    for (size_t i = 0; i < base_.lanes.size(); ++i) {
      for (size_t j = 0; j < run_.lanes.size() && out_.lanes[i] < 0; ++j) {
        if (taken[j] || run_.lanes[j].policy_text != base_.lanes[i].policy_text) continue;
        take(i, j);
        change(fmt::format("lane {} is called {} here", base_.lanes[i].name, run_.lanes[j].name));
      }
    }
    for (size_t i = 0; i < base_.lanes.size(); ++i) {
      const LaneIdentity& before = base_.lanes[i];
      if (out_.lanes[i] < 0) {
        out_.no_match.push_back("the run has no lane " + before.name);
        continue;
      }
      const LaneIdentity& after = run_.lanes[static_cast<size_t>(out_.lanes[i])];
      if (before.policy_text != after.policy_text) change(policy_change_text(before, after));
      if (before.engine != after.engine || before.target != after.target) {
        change(fmt::format("lane {}: engine {}@{} -> {}@{}", before.name, before.engine,
                           before.target, after.engine, after.target));
      }
    }
    for (size_t j = 0; j < run_.lanes.size(); ++j) {
      if (!taken[j])
        out_.extra.push_back("the baseline has no lane " + run_.lanes[j].name +
                             ", so it is not judged");
    }
  }

  // "lane pure-fp16: its policy differs: `accumulate = "fp32"` -> `accumulate = "fp16"`".
  static std::string policy_change_text(const LaneIdentity& before, const LaneIdentity& after) {
    const auto lines = [](const std::string& text) {
      std::vector<std::string> kept;
      for (const std::string& line : split(text, '\n')) {
        if (!line.empty() && line[0] != '#') kept.push_back(line);
      }
      return kept;
    };
    const std::vector<std::string> a = lines(before.policy_text), b = lines(after.policy_text);
    const auto without = [](const std::vector<std::string>& x, const std::vector<std::string>& y) {
      for (const std::string& line : x) {
        if (std::ranges::count(y, line) == 0) return "`" + line + "`";
      }
      return std::string("nothing");
    };
    return fmt::format("lane {}: its policy differs, first {} -> {}", before.name, without(a, b),
                       without(b, a));
  }

  const ModelIdentity& base_;
  const ModelIdentity& run_;
  Counterparts out_;
};

}  // namespace

std::string SiteIdentity::label() const {
  return fmt::format("{} {} {} {}", layer.empty() ? "(no layer)" : layer, op, role, point);
}

std::string shape_text(const Shape& shape) {
  std::string text;
  for (const int64_t extent : shape) text += fmt::format("{}{}", text.empty() ? "" : "x", extent);
  return text.empty() ? "scalar" : text;
}

ModelIdentity identity_of(const RunFile& run) {
  ModelIdentity identity;
  const Graph graph = graph_from_json(run.graph_json());
  for (const Node& node : graph.nodes) {
    if (node.is_backward()) continue;
    NodeIdentity& out = identity.nodes.emplace_back();
    out.op = node.op;
    out.layer = layer_of(graph, node);
    out.source_line = node.source_line;
    for (const auto& [name, value] : node.attributes) out.attributes[name] = attribute_text(value);
    if (node.autocast != AutocastRegion::kUnsaid) {
      out.attributes["autocast"] = node.autocast == AutocastRegion::kOn ? "on" : "off";
    }
  }
  for (const Site& site : run.sites().sites) {
    identity.sites.push_back({.layer = site.layer,
                              .op = site.op,
                              .role = std::string(to_string(site.role)),
                              .point = std::string(to_string(site.point)),
                              .value = site.value,
                              .index = site.index,
                              .shape = shape_text(site.shape),
                              .source_line = site.source_line});
  }
  for (const Parameter& p : graph.parameters) {
    identity.parameters.push_back({p.name, shape_text(p.type.shape)});
  }
  identity.settings = setup_in_words(run.options());
  for (const LaneInfo& lane : run.lanes()) {
    if (twin_number(lane.name) > 0) continue;
    identity.lanes.push_back({lane.name, lane.engine, lane.target, lane.policy_text});
  }
  identity.data = run.data();
  identity.batches_hash = run.batches_hash();
  identity.seed = run.options().seed;
  return identity;
}

Counterparts find_counterparts(const ModelIdentity& baseline, const ModelIdentity& run) {
  return Matcher(baseline, run).find();
}

}  // namespace lockstep
