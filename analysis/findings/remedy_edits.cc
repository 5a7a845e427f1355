// Edits of layers, ops and stored values. remedy_lane_edits.cc has those of scales, optimizer and
// run.
#include "analysis/findings/remedy_edits.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "analysis/findings/finding_context.h"
#include "analysis/findings/remedy_toml.h"
#include "src/graph/op.h"
#include "src/graph/op_text.h"

namespace lockstep {
namespace {

using LayerOp = std::pair<std::string, std::string>;  // layer, forward op

const Node* node_of(const EditContext& c, const std::string& id) {
  const auto node = std::ranges::find(c.step.nodes, id, &Node::id);
  return node == c.step.nodes.end() ? nullptr : &*node;
}

// The site where it happened: of a finding with a cause in the forward pass, that of the cause.
const Site* site_of(const EditContext& c) {
  return c.found.finding.site < 0 ? nullptr : &c.found.site();
}

const Node* forward_of(const EditContext& c, const Node* node) {
  return node == nullptr || !node->is_backward() ? node : node_of(c, node->forward_node);
}

// The forward node of a site in the graph, or null.
const Node* forward_node(const EditContext& c) {
  const Site* site = site_of(c);
  if (site == nullptr || !is_in_graph(*site) || is_storage(*site)) return nullptr;
  return forward_of(c, node_of(c, site->node));
}

// No rule can name a layer whose path holds a glob's characters.
bool can_name(const std::string& layer) {
  return !layer.empty() && layer.find_first_of("*?") == std::string::npos;
}

LayerOp place_of(const EditContext& c, const Node& forward) {
  return {layer_of(c.step, forward), forward.op};
}

// What computes in the forward pass with a node's results.
std::set<LayerOp> readers_of(const EditContext& c, const std::set<std::string>& values) {
  std::set<LayerOp> places;
  for (const Node& node : c.step.nodes) {
    if (node.is_backward()) continue;
    const bool reads = std::ranges::any_of(
        node.inputs, [&](const std::string& input) { return values.contains(input); });
    if (reads) places.insert(place_of(c, node));
  }
  return places;
}

std::set<std::string> results_of(const Node& node) {
  std::set<std::string> values;
  for (size_t i = 0; i < node.outputs.size(); ++i) values.insert(output_id(node, i));
  return values;
}

std::string compute_rules(const std::set<LayerOp>& places, const std::string& format) {
  std::string text;
  for (const auto& [layer, op] : places) {
    if (!can_name(layer)) return "";
    text += rule_text({{"layer", layer}, {"op", op}, {"compute", format}});
  }
  return text;
}

// The line for a lane of autocast. A model that is cast as a whole has no region to leave: the
// report finds its casts (analysis/fix/moved_casts.h).
std::string region_of(const EditContext& c, const std::string& layer) {
  if (c.policy.low == nullptr) return "";
  return fmt::format(
      "with torch.autocast(\"cuda\", enabled=False):  # around {}, its inputs as x.float()", layer);
}

void add_edit(std::vector<RemedyEdit>& edits, RemedyEdit edit) {
  const bool known =
      std::ranges::any_of(edits, [&](const RemedyEdit& e) { return e.toml == edit.toml; });
  if (!known && !edit.toml.empty()) edits.push_back(std::move(edit));
}

std::vector<RemedyEdit> op_in(const EditContext& c, const Format& in) {
  const std::string& format = in.name;
  std::vector<RemedyEdit> edits;
  const Node* node = forward_node(c);
  if (node == nullptr) return edits;
  const auto [layer, op] = place_of(c, *node);
  const std::string pytorch = in.is_fp32() ? region_of(c, layer) : "";
  std::set<LayerOp> places = {{layer, op}};
  add_edit(edits, {fmt::format("{} in {}", op_text(layer, op), format),
                   compute_rules(places, format), pytorch});
  const Finding& f = c.found.finding;
  const Site* cause = f.cause < 0 ? nullptr : &c.found.sites.sites[static_cast<size_t>(f.cause)];
  const Node* lost =
      cause == nullptr || is_storage(*cause) ? nullptr : forward_of(c, node_of(c, cause->node));
  if (lost != nullptr && lost != node) {
    std::set<LayerOp> both = places;
    both.insert(place_of(c, *lost));
    add_edit(edits, {fmt::format("{} and {} in {}", op_text(layer, op), lost->op, format),
                     compute_rules(both, format), pytorch});
  }
  const std::set<LayerOp> readers = readers_of(c, results_of(*node));
  places.insert(readers.begin(), readers.end());
  add_edit(edits, {fmt::format("{} and what reads its result in {}", op_text(layer, op), format),
                   compute_rules(places, format), pytorch});
  return edits;
}

std::vector<RemedyEdit> layer_in(const EditContext& c, const Format& in) {
  const std::string& format = in.name;
  std::vector<RemedyEdit> edits;
  const Node* node = forward_node(c);
  if (node == nullptr) return edits;
  const std::string layer = layer_of(c.step, *node);
  if (!can_name(layer)) return edits;
  const std::string pytorch = in.is_fp32() ? region_of(c, layer) : "";
  std::string toml = rule_text({{"layer", layer}, {"compute", format}});
  add_edit(edits, {fmt::format("{} in {}", layer, format), toml, pytorch});
  std::set<std::string> values;
  for (const Node& one : c.step.nodes) {
    if (!one.is_backward() && layer_of(c.step, one) == layer) values.merge(results_of(one));
  }
  std::set<LayerOp> readers = readers_of(c, values);
  std::erase_if(readers, [&](const LayerOp& place) { return place.first == layer; });
  const std::string more = compute_rules(readers, format);
  if (!more.empty()) {
    add_edit(edits, {fmt::format("{} and what reads its results in {}", layer, format), toml + more,
                     pytorch});
  }
  return edits;
}

// The forward ops before a node, level by level.
class NodesBefore {
 public:
  NodesBefore(const EditContext& c, const Node& node) : c_(c), now_{&node} {}
  void go_up() {
    std::set<const Node*> before;
    for (const Node* one : now_) {
      for (const std::string& input : one->inputs) {
        values_.insert(input);
        const Node* producer = c_.step.producer_of(input);
        if (producer == nullptr) continue;
        before.insert(producer);
        places_.insert(place_of(c_, *producer));
      }
    }
    now_ = std::move(before);
  }
  const std::set<LayerOp>& places() const { return places_; }      // of the levels so far
  const std::set<std::string>& values() const { return values_; }  // that were read

 private:
  const EditContext& c_;
  std::set<const Node*> now_;
  std::set<LayerOp> places_;
  std::set<std::string> values_;
};

std::vector<RemedyEdit> joined(std::vector<RemedyEdit> edits, std::vector<RemedyEdit> more) {
  for (RemedyEdit& edit : more) add_edit(edits, std::move(edit));
  return edits;
}

// The forward ops on the ways from these values to `end`, itself included.
std::set<LayerOp> places_between(const EditContext& c, std::set<std::string> values,
                                 const Node& end) {
  std::vector<const Node*> after;  // of the values
  for (const Node& node : c.step.nodes) {
    if (node.is_backward()) continue;
    const bool reads = std::ranges::any_of(
        node.inputs, [&](const std::string& input) { return values.contains(input); });
    if (!reads) continue;
    after.push_back(&node);
    values.merge(results_of(node));
    if (&node == &end) break;
  }
  std::set<LayerOp> places;
  std::set<std::string> leading(end.inputs.begin(), end.inputs.end());
  for (size_t i = after.size(); i-- > 0;) {
    const std::set<std::string> results = results_of(*after[i]);
    const bool leads = after[i] == &end || std::ranges::any_of(results, [&](auto& result) {
                         return leading.contains(result);
                       });
    if (!leads) continue;
    places.insert(place_of(c, *after[i]));
    leading.insert(after[i]->inputs.begin(), after[i]->inputs.end());
  }
  return places;
}

std::string storage_rule(const std::string& layer, Role role, const std::string& format) {
  return rule_text({{"layer", layer},
                    {"role", std::string(to_string(role))},
                    {"point", "storage"},
                    {"format", format}});
}

bool is_narrow(const Accumulator& accumulator) {
  return !contains(*accumulator.format, find_format("fp32"));
}

std::string_view storage_key(Role role) {
  if (role == Role::kWeight) return "weight";
  return role == Role::kInput ? "input" : "buffer";
}

}  // namespace

std::vector<RemedyEdit> op_in_fp32(const EditContext& c) {
  return op_in(c, find_format("fp32"));
}
std::vector<RemedyEdit> op_in_fp32_or_bf16(const EditContext& c) {
  return joined(op_in(c, find_format("fp32")), op_in(c, find_format("bf16")));
}
std::vector<RemedyEdit> layer_in_fp32(const EditContext& c) {
  return layer_in(c, find_format("fp32"));
}
std::vector<RemedyEdit> layer_in_fp32_or_bf16(const EditContext& c) {
  return joined(layer_in(c, find_format("fp32")), layer_in(c, find_format("bf16")));
}

std::vector<RemedyEdit> values_in_bf16_or_fp32(const EditContext& c) {
  std::vector<RemedyEdit> edits;
  const Site* site = site_of(c);
  const bool is_value =
      site != nullptr && (site->point == Point::kOperand || site->point == Point::kOutput);
  if (!is_value || !is_in_graph(*site) || !can_name(site->layer)) return edits;
  const std::string role(to_string(site->role)), point(to_string(site->point));
  for (const Format* in : {&find_format("bf16"), &find_format("fp32")}) {
    add_edit(
        edits,
        {fmt::format("every {} {} of {} in {}", role, point, site->layer, in->name),
         rule_text(
             {{"layer", site->layer}, {"role", role}, {"point", point}, {"format", in->name}})});
  }
  return edits;
}

std::vector<RemedyEdit> deciders_in_fp32(const EditContext& c) {
  const Node* node = forward_node(c);
  if (node == nullptr) return {};
  std::vector<RemedyEdit> edits;
  constexpr int kDepth = 4;  // a router: softmax of a linear layer, and its casts
  NodesBefore before(c, *node);
  for (int d = 1; d <= kDepth; ++d) {
    before.go_up();
    add_edit(edits, {fmt::format("what {} decides by in fp32, {} op{} before it",
                                 layer_of(c.step, *node), d, d == 1 ? "" : "s"),
                     compute_rules(before.places(), "fp32")});
  }
  return edits;
}

std::vector<RemedyEdit> operands_in_fp32(const EditContext& c) {
  const Finding& f = c.found.finding;
  const Node* node =
      f.cause < 0
          ? forward_node(c)
          : forward_of(c, node_of(c, c.found.sites.sites[static_cast<size_t>(f.cause)].node));
  if (node == nullptr) return {};
  std::vector<RemedyEdit> edits;
  constexpr int kDepth = 16;
  const auto [layer, op] = place_of(c, *node);
  const auto stored = c.found.sites.storage_sites();
  NodesBefore before(c, *node);
  add_edit(edits, {fmt::format("{} in fp32", op_text(layer, op)),
                   compute_rules({{layer, op}}, "fp32"), region_of(c, layer)});
  for (int d = 1, told = 1; d <= kDepth; ++d) {
    before.go_up();
    if (d != told) continue;
    told *= 2;
    std::set<LayerOp> places = before.places();
    places.insert({layer, op});
    std::string toml = compute_rules(places, "fp32");
    if (toml.empty()) continue;
    std::set<std::pair<std::string, Role>> read;
    for (const std::string& value : before.values()) {
      const auto found = stored.find(value);
      if (found == stored.end()) continue;
      const Site& site = c.found.sites.sites[static_cast<size_t>(found->second)];
      if (site.role != Role::kWeight && can_name(site.layer)) read.insert({site.layer, site.role});
    }
    for (const auto& [of_layer, role] : read) {
      toml += storage_rule(of_layer, role, "fp32");
    }
    add_edit(edits, {fmt::format("{} and {} before it in fp32", op_text(layer, op),
                                 d == 1 ? "the ops" : fmt::format("{} levels of ops", d)),
                     toml, region_of(c, layer)});
  }
  return edits;
}

std::vector<RemedyEdit> rounded_in_fp32(const EditContext& c) {
  const Finding& f = c.found.finding;
  if (f.rounded < 0) return {};
  const Site& rounded = c.found.sites.sites[static_cast<size_t>(f.rounded)];
  std::string name, text;
  std::set<LayerOp> places;
  std::set<std::string> values;
  if (is_storage(rounded)) {
    if (!can_name(rounded.layer)) return {};
    name = stored_name(rounded) + " kept";
    text = storage_rule(rounded.layer, rounded.role, "fp32");
    values.insert(rounded.value);
  } else {
    const Node* node = forward_of(c, node_of(c, rounded.node));
    if (node == nullptr) return {};
    const LayerOp place = place_of(c, *node);
    name = op_text(place.first, place.second);
    places.insert(place);
    values = results_of(*node);
  }
  std::vector<RemedyEdit> edits;
  add_edit(edits, {name + " in fp32", text + compute_rules(places, "fp32"),
                   places.empty() ? "" : region_of(c, places.begin()->first)});
  const Node* end = forward_node(c);
  if (end == nullptr) return edits;
  const std::set<LayerOp> between = places_between(c, values, *end);
  places.insert(between.begin(), between.end());
  const std::string rules = compute_rules(places, "fp32");
  const auto [layer, op] = place_of(c, *end);
  if (!rules.empty()) {
    add_edit(edits,
             {fmt::format("{} in fp32, and the ops from there to {}", name, op_text(layer, op)),
              text + rules, region_of(c, layer)});
  }
  return edits;
}

std::vector<RemedyEdit> sums_in_fp32(const EditContext& c) {
  const std::string fused = R"(accumulator = "fp32_fused")";
  std::vector<RemedyEdit> edits;
  const Site* site = site_of(c);
  const Node* node = site == nullptr ? nullptr : node_of(c, site->node);
  if (node != nullptr && find_op(node->op).sums.of_products) {
    const std::string layer = layer_of(c.step, *node);
    if (can_name(layer)) {
      add_edit(edits,
               {fmt::format("sums of {} {} in fp32", layer, node->op),
                rule_text({{"layer", layer}, {"op", node->op}, {"accumulator", "fp32_fused"}})});
    }
  }
  const bool of_products = is_narrow(*c.policy.gemm_accumulator);
  if (of_products) add_edit(edits, {"all sums of products in fp32", "[gemm]\n" + fused + "\n"});
  const bool of_index = c.policy.indexed_sums != IndexedSums::kDeclared && node != nullptr &&
                        !string_attribute(*node, "own_type", "").empty();
  if (is_narrow(*c.policy.reduce_accumulator) || of_index) {
    const std::string reduce =
        "[reduce]\n" + fused + (of_index ? "\nindexed = \"declared\"\n" : "\n");
    add_edit(edits, {"all other sums in fp32", reduce});
    if (of_products) add_edit(edits, {"all sums in fp32", "[gemm]\n" + fused + "\n" + reduce});
  }
  return edits;
}

std::vector<RemedyEdit> stored_in_fp32_or_bf16(const EditContext& c) {
  const Finding& f = c.found.finding;
  const int32_t at = f.cause >= 0 ? f.cause : f.site;
  if (at < 0) return {};
  const Site& read = c.found.sites.sites[static_cast<size_t>(at)];
  const std::map<std::string, int32_t> stored = c.found.sites.storage_sites();
  const auto found = stored.find(read.value);  // of what an op reads
  const Site& site =
      found == stored.end() ? read : c.found.sites.sites[static_cast<size_t>(found->second)];
  std::vector<RemedyEdit> edits;
  if (!can_name(site.layer)) return edits;
  const bool has_buffers = std::ranges::any_of(
      c.step.buffers, [&](const Buffer& buffer) { return buffer.layer == site.layer; });
  if (!is_storage(site) && !has_buffers) return edits;
  const std::string name = is_storage(site) ? stored_name(site) : "buffers of " + site.layer;
  const Role role = is_storage(site) ? site.role : Role::kBuffer;
  const std::set<LayerOp> readers =
      is_storage(site) ? readers_of(c, {site.value}) : std::set<LayerOp>{};
  for (const Format* in : {&find_format("fp32"), &find_format("bf16")}) {
    const std::string& format = in->name;
    const std::string rule = storage_rule(site.layer, role, format);
    add_edit(edits, {fmt::format("{} kept in {}", name, format), rule});
    const std::string reading = compute_rules(readers, format);
    if (!reading.empty()) {
      add_edit(edits, {fmt::format("{} kept in {}, and read so", name, format), rule + reading,
                       in->is_fp32() ? region_of(c, site.layer) : ""});
      std::string more = reading;
      for (const Node& node : c.step.nodes) {
        if (node.is_backward() || !readers.contains(place_of(c, node))) continue;
        more += compute_rules(readers_of(c, results_of(node)), format);
      }
      add_edit(edits, {fmt::format("{} kept and read in {}, with what follows", name, format),
                       rule + more});
    }
  }
  const std::string key(storage_key(role));
  const std::string masters =
      key == "weight" && c.policy.master_weights ? "[optimizer]\nmaster_weights = false\n" : "";
  add_edit(edits, {fmt::format("every {} stored in fp32", key),
                   fmt::format("[storage]\n{} = \"fp32\"\n{}", key, masters)});
  return edits;
}

}  // namespace lockstep
