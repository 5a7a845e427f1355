// See site.h. The origin of a value decides its role; nothing here depends on a policy.
#include "src/graph/site.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <set>

#include "emulation/format/format.h"
#include "src/core/error.h"
#include "src/graph/infer.h"
#include "src/graph/op.h"
#include "src/graph/op_text.h"

namespace lockstep {
namespace {

constexpr std::array<std::string_view, 4> kPoints = {"operand", "output", "accumulator", "storage"};
// Prefixes of the node ids of sites outside the graph; the parameter's name follows.
constexpr std::string_view kAllReduce = "all_reduce:", kOptimizer = "optimizer:",
                           kOtherPath = "path";
// The value follows: its id or, of an input, its path.
constexpr std::string_view kStorage = "storage:";

class SiteMaker {
 public:
  explicit SiteMaker(const Graph& step) : step_(step) {}

  std::vector<Site> make(const StateShapes& optimizer_states, int64_t workers) {
    find_masked_constants();
    add_storage();
    for (const Node& node : step_.nodes) add_node(node);
    for (const Parameter& parameter : step_.parameters) {
      if (workers > 1 && step_.gradients.contains(parameter.name))
        add_all_reduce(parameter, workers);
    }
    for (const Parameter& parameter : step_.parameters) {
      if (step_.gradients.contains(parameter.name))
        add_updates(parameter, optimizer_states(parameter));
    }
    return std::move(sites_);
  }

 private:
  Role role_of(const std::string& value) const {
    if (is_seed(value) || value == step_.loss) return Role::kLoss;
    if (value.starts_with("p:")) return Role::kWeight;
    if (value.starts_with("b:") || value.starts_with("c:")) return Role::kBuffer;
    const Node* node = step_.producer_of(value);
    if (!node) return Role::kInput;
    const size_t index = static_cast<size_t>(split_value_id(value).second);
    if (node->is_backward()) {
      return step_.parameter_of(node->gradient_of[index]) ? Role::kGradWeight
                                                          : Role::kGradActivation;
    }
    // Statistics in addition to the result: running ones, and those saved for the backward pass.
    const std::vector<int> follows = output_follows_of(find_op(node->op), *node);
    return index < follows.size() && follows[index] != kFollowsOutput0 ? Role::kBuffer
                                                                       : Role::kActivation;
  }

  // Numbers beyond the range of FP16 count as infinite: -1e9 as a masked score.
  static bool is_mask_number(double x) {
    static const double kLargest = find_format("fp16").max_finite;
    return std::abs(x) > kLargest;
  }

  void find_masked_constants() {
    for (const Constant& constant : step_.constants) {
      if (constant.type.element != ElementType::kFloat) continue;
      if (constant.stat_exempt) masked_.insert("c:" + constant.name);
      if (constant.data == nullptr) continue;
      const Tensor values = constant.data->to(Container::kF64);
      const auto numbers = values.as<double>();
      if (std::any_of(numbers.begin(), numbers.end(), is_mask_number)) {
        masked_.insert("c:" + constant.name);
      }
    }
  }

  // Whether infinities in the node's outputs are intended by the graph.
  bool is_masked(const Node& node) const {
    if (node.stat_exempt) return true;
    const OpDef& op = find_op(node.op);
    if (!op.elements.fill_attribute.empty() &&
        is_mask_number(double_attribute(node, op.elements.fill_attribute, 0))) {
      return true;
    }
    return op.elements.keeps_masks &&
           std::any_of(node.inputs.begin(), node.inputs.end(),
                       [&](const auto& id) { return masked_.contains(id); });
  }

  Site& add(const std::string& layer, const std::string& op, Role role, Point point, Shape shape,
            const std::string& node, int index, const std::string& value) {
    Site site{};
    site.id = static_cast<int32_t>(sites_.size());
    site.layer = layer, site.op = op, site.role = role, site.point = point;
    site.shape = std::move(shape);
    site.node = node, site.index = index, site.value = value;
    site.stat_exempt = point != Point::kAccumulator && masked_.contains(value);
    sites_.push_back(std::move(site));
    return sites_.back();
  }

  // In the order of the roundings: what is stored once, then the batch.
  void add_storage() {
    for (const Node& node : step_.nodes) {
      for (const std::string& value : node.inputs) first_reader_.try_emplace(value, &node);
    }
    for (const Parameter& p : step_.parameters) {
      add_stored("p:" + p.name, "p:" + p.name, layer_of_parameter(p), p.type);
    }
    for (const Buffer& b : step_.buffers) {
      add_stored("b:" + b.name, "b:" + b.name, b.layer.empty() ? b.name : b.layer, b.type);
    }
    for (const Constant& c : step_.constants) {
      add_stored("c:" + c.name, "c:" + c.name, "", c.type);
    }
    for (const GraphInput& input : step_.inputs) {
      if (!is_seed(input.id)) add_stored(input.id, input.path, "", input.type);
    }
  }

  // A value without an owner has the layer and the source line of its first reader.
  void add_stored(const std::string& value, const std::string& name, const std::string& owner,
                  const TensorType& type) {
    if (type.element != ElementType::kFloat) return;
    const auto reader = first_reader_.find(value);
    const bool is_read = reader != first_reader_.end();
    const std::string layer = !owner.empty() ? owner
                              : is_read      ? layer_of(step_, *reader->second)
                                             : name;
    Site& site = add(layer, "storage", role_of(value), Point::kStorage, type.shape,
                     std::string(kStorage) + name, 0, value);
    if (owner.empty() && is_read) site.source_line = reader->second->source_line;
    output_site_[value] = site.id;
  }

  void add_node(const Node& node) {
    const std::string layer = layer_of(step_, node);
    if (is_masked(node)) {
      for (size_t i = 0; i < node.outputs.size(); ++i) masked_.insert(output_id(node, i));
    }
    std::vector<int32_t> operands;
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const std::string& value = node.inputs[i];
      const TensorType& type = step_.type_of(value);
      if (type.element != ElementType::kFloat) continue;
      Site& site = add(layer, node.op, role_of(value), Point::kOperand, type.shape, node.id,
                       static_cast<int>(i), value);
      const auto producer = output_site_.find(value);
      if (producer != output_site_.end()) site.feeds = {producer->second};
      finish(site, node, is_gradient(step_, value));
      operands.push_back(site.id);
    }
    std::vector<int32_t> sources = operands;
    if (const OpDef& op = find_op(node.op); op.sums.of_products && op.sums.are_shown) {
      Site& site = add(layer, node.op, Role::kAccumulator, Point::kAccumulator,
                       node.outputs[0].shape, node.id, 0, output_id(node, 0));
      site.feeds = operands;
      finish(site, node, node.is_backward());
      sources.push_back(site.id);
    }
    for (size_t i = 0; i < node.outputs.size(); ++i) {
      if (node.outputs[i].element != ElementType::kFloat) continue;
      const std::string value = output_id(node, i);
      Site& site = add(layer, node.op, role_of(value), Point::kOutput, node.outputs[i].shape,
                       node.id, static_cast<int>(i), value);
      // Only output 0 comes from the accumulator.
      site.feeds = i == 0 ? sources : operands;
      finish(site, node, node.is_backward());
      output_site_[value] = site.id;
    }
  }

  static void finish(Site& site, const Node& node, bool scaled) {
    site.source_line = node.source_line;
    site.torch_op = node.torch_op;
    site.scaled = scaled;
  }

  static std::string layer_of_parameter(const Parameter& parameter) {
    return parameter.layer.empty() ? parameter.name : parameter.layer;
  }

  // The optimizer reads the sum. With several passes, each has its own sum.
  void add_all_reduce(const Parameter& parameter, int64_t workers) {
    for (size_t pass = 0; pass < pass_count(step_); ++pass) {
      const auto found = pass_gradients(step_, pass).find(parameter.name);
      if (found != pass_gradients(step_, pass).end()) {
        add_all_reduce(parameter, workers, found->second, static_cast<int>(pass));
      }
    }
  }
  void add_all_reduce(const Parameter& parameter, int64_t workers, const std::string& gradient,
                      int index) {
    const std::string node = std::string(kAllReduce) + parameter.name;
    const std::string layer = layer_of_parameter(parameter);
    Shape gathered = parameter.type.shape;
    gathered.insert(gathered.begin(), workers);
    Site& entering = add(layer, "all_reduce", Role::kGradWeight, Point::kOperand, gathered, node,
                         index, gradient);
    const auto producer = output_site_.find(gradient);
    if (producer != output_site_.end()) entering.feeds = {producer->second};
    entering.scaled = true;
    const int32_t entered = entering.id;
    Site& leaving = add(layer, "all_reduce", Role::kGradWeight, Point::kOutput,
                        parameter.type.shape, node, index, gradient);
    leaving.feeds = {entered};
    leaving.scaled = true;
    output_site_[gradient] = leaving.id;
  }

  void add_updates(const Parameter& parameter, const std::vector<Shape>& optimizer_states) {
    const std::string node = std::string(kOptimizer) + parameter.name;
    const std::string value = "p:" + parameter.name;
    const std::string layer = layer_of_parameter(parameter);
    const auto add_one = [&](Role role, Point point, const Shape& shape, int index,
                             std::vector<int32_t> feeds) {
      Site& site = add(layer, "optimizer", role, point, shape, node, index, value);
      site.feeds = std::move(feeds);
      return site.id;
    };
    std::vector<int32_t> from_gradient;
    for (size_t pass = 0; pass < pass_count(step_); ++pass) {
      const auto gradient = pass_gradients(step_, pass).find(parameter.name);
      if (gradient == pass_gradients(step_, pass).end()) continue;
      const auto producer = output_site_.find(gradient->second);
      if (producer != output_site_.end()) from_gradient.push_back(producer->second);
    }
    const Shape& shape = parameter.type.shape;
    const int32_t update = add_one(Role::kUpdate, Point::kOperand, shape, 0, from_gradient);
    for (size_t k = 0; k < optimizer_states.size(); ++k) {
      add_one(Role::kOptimizerState, Point::kOperand, optimizer_states[k], static_cast<int>(k),
              from_gradient);
    }
    const int32_t master = add_one(Role::kMasterWeight, Point::kOutput, shape, 0, {update});
    add_one(Role::kWeight, Point::kOutput, shape, 1, {update, master});
  }

  const Graph& step_;
  std::vector<Site> sites_;
  std::map<std::string, int32_t> output_site_;  // value id -> site of that output, or of storage
  std::map<std::string, const Node*> first_reader_;  // by value id
  std::set<std::string> masked_;  // value ids with infinities intended by the graph
};

}  // namespace

std::string_view to_string(Point point) {
  return kPoints.at(static_cast<size_t>(point));
}

Point find_point(std::string_view name) {
  for (size_t i = 0; i < kPoints.size(); ++i) {
    if (kPoints[i] == name) return static_cast<Point>(i);
  }
  throw InputError("point '" + std::string(name) + "': unknown",
                   did_you_mean(name, {kPoints.begin(), kPoints.end()}));
}

std::string Site::label() const {
  std::string text = op_text(layer, op);
  for (const std::string_view part : {to_string(role), to_string(point)}) {
    text += ' ';
    text += part;
  }
  return text;
}

int32_t SiteTable::find(std::string_view node, Point point, int index) const {
  for (const Site& site : sites) {
    if (site.index == index && site.point == point && site.node == node) return site.id;
  }
  return -1;
}

int32_t SiteTable::find_update(std::string_view parameter, Role role, int index) const {
  for (const Site& site : sites) {
    if (site.role != role || !site.node.starts_with(kOptimizer)) continue;
    if (std::string_view(site.node).substr(kOptimizer.size()) != parameter) continue;
    if (role != Role::kOptimizerState || site.index == index) return site.id;
  }
  return -1;
}

int32_t SiteTable::find_all_reduce(std::string_view parameter, Point point, int pass) const {
  return find(std::string(kAllReduce) + std::string(parameter), point, pass);
}

std::map<std::string, int32_t> SiteTable::storage_sites() const {
  std::map<std::string, int32_t> found;
  for (const Site& site : sites) {
    if (!is_storage(site)) break;
    found[site.value] = site.id;
  }
  return found;
}

// Captures name constants after the call that made them and a hash: "arange-3d2e1125",
// "c-8e472866".
std::string constant_name(const std::string& name) {
  constexpr size_t kHashDigits = 8;
  const size_t dash = name.rfind('-');
  const bool has_hash = dash != std::string::npos && name.size() - dash - 1 == kHashDigits &&
                        name.find_first_not_of("0123456789abcdef", dash + 1) == std::string::npos;
  const std::string call = has_hash ? name.substr(0, dash) : name;
  return call == "c" ? "a constant" : "constant " + call;
}

namespace {

// "derived:0.1 * noise:mul" -> "input 0.1 * noise", "noise:aten.rand.default:rand_1" -> "noise
// rand_1".
std::string input_name(const std::string& path) {
  constexpr std::string_view kDerived = "derived:", kNoise = "noise:";
  const size_t last = path.rfind(':');
  if (path.starts_with(kNoise)) return "noise " + path.substr(last + 1);
  if (!path.starts_with(kDerived) || last < kDerived.size()) return "input " + path;
  return "input " + path.substr(kDerived.size(), last - kDerived.size());
}

}  // namespace

std::string stored_name(const Site& site) {
  const std::string name = site.node.substr(kStorage.size());
  if (site.role == Role::kInput) return input_name(name);
  if (site.value.starts_with("c:")) return constant_name(name.substr(2));
  const std::string_view kind = site.role == Role::kWeight ? "weight " : "buffer ";
  return std::string(kind) + name.substr(2);  // without "p:", "b:"
}

bool is_in_graph(const Site& site) {
  return !is_storage(site) && !site.node.starts_with(kAllReduce) &&
         !site.node.starts_with(kOptimizer) && !site.node.starts_with(kLiveNode);
}

std::string node_of_other_path(size_t number, std::string_view id) {
  return fmt::format("{}{}:{}", kOtherPath, number, id);
}

bool is_on_other_path(const Site& site) {
  return site.node.starts_with(kOtherPath) && site.node.find(':') != std::string::npos;
}

std::string parameter_of(const Site& site) {
  return site.node.substr(site.node.find(':') + 1);
}

SiteTable make_sites(const Graph& step, int optimizer_states) {
  return make_sites(step, [=](const Parameter& parameter) {
    return std::vector<Shape>(static_cast<size_t>(optimizer_states), parameter.type.shape);
  });
}

SiteTable make_sites(const Graph& step, const StateShapes& optimizer_states, int64_t workers) {
  return {SiteMaker(step).make(optimizer_states, workers)};
}

}  // namespace lockstep
