// Graphs that are consistent but make no sense.
#include <limits>
#include <map>
#include <new>

#include "src/core/error.h"
#include "src/graph/infer.h"
#include "src/graph/op.h"
#include "tests/record/capture/damage.h"

namespace lockstep::testing {
namespace {

constexpr double kMostSmall = 20'000;  // elements of a tensor

class Mixer {
 public:
  Mixer(Graph graph, Dice& dice) : graph_(std::move(graph)), dice_(dice) {
    for (const GraphInput& input : graph_.inputs) define(input.id, input.type);
    for (const Parameter& p : graph_.parameters) define("p:" + p.name, p.type);
    for (const Buffer& b : graph_.buffers) define("b:" + b.name, b.type);
    for (const Constant& c : graph_.constants) define("c:" + c.name, c.type);
  }

  Graph mix() {
    for (Node& node : graph_.nodes) {
      const Node kept = node;
      if (dice_.one_in(3)) change(node);
      if (!infer(node)) {
        node = kept;
        if (!infer(node)) replace(node);
      }
      for (size_t i = 0; i < node.outputs.size(); ++i) define(output_id(node, i), node.outputs[i]);
    }
    std::erase_if(graph_.mutations, [&](const Mutation& mutation) {
      const auto value = types_.find(mutation.value);
      return value == types_.end() || value->second != types_.at("b:" + mutation.buffer);
    });
    graph_.outputs.clear();
    Node mean;
    mean.id = "n" + std::to_string(graph_.nodes.size());
    mean.op = "mean";
    mean.inputs = {last_float_};
    if (infer(mean)) graph_.nodes.push_back(mean);
    graph_.loss = mean.id;
    return graph_;
  }

 private:
  void define(const std::string& id, const TensorType& type) {
    types_[id] = type;
    ids_.push_back(id);
    if (type.element == ElementType::kFloat) last_float_ = id;
  }

  // False, with the node unchanged, if a rule forbids it or it would be large.
  bool infer(Node& node) {
    std::vector<TensorType> inputs;
    for (const std::string& id : node.inputs) {
      const auto found = types_.find(id);
      if (found == types_.end()) return false;
      inputs.push_back(found->second);
    }
    try {
      std::vector<TensorType> outputs = infer_outputs(node, inputs);
      for (const TensorType& type : outputs) {
        double count = 1;
        for (const int64_t extent : type.shape) count *= static_cast<double>(extent);
        if (!(count >= 1 && count <= kMostSmall)) return false;
      }
      node.outputs = std::move(outputs);
      return true;
    } catch (const InputError&) {
    } catch (const std::logic_error&) {
    } catch (const std::bad_alloc&) {
    }
    return false;
  }

  void change(Node& node) {
    switch (dice_.below(4)) {
      case 0:
        if (!node.inputs.empty()) dice_.pick(node.inputs) = dice_.pick(ids_);
        break;
      case 1: {
        const auto all = ops();
        const OpDef& op = all[dice_.below(all.size())];
        if (op.name.find("_backward") != std::string_view::npos) break;
        node.op = op.name;
        node.attributes.clear();
        node.inputs.resize(
            std::min<size_t>(node.inputs.size(), static_cast<size_t>(op.max_inputs)));
        while (node.inputs.size() < static_cast<size_t>(op.min_inputs))
          node.inputs.push_back(dice_.pick(ids_));
        if (!op.attributes.empty()) set_attribute(node, op);
        break;
      }
      default: {
        const OpDef& op = find_op(node.op);
        if (!op.attributes.empty()) set_attribute(node, op);
      }
    }
  }

  // Tries values of every type until one fits.
  void set_attribute(Node& node, const OpDef& op) {
    const std::string name(op.attributes[dice_.below(op.attributes.size())]);
    for (int tries = 0; tries < 20; ++tries) {
      Node tried = node;
      tried.attributes[name] = odd_attribute();
      if (!infer(tried)) continue;
      node = tried;
      return;
    }
  }

  Attribute odd_attribute() {
    constexpr double kFar = std::numeric_limits<double>::infinity();
    constexpr double kNumbers[] = {0,      -1,    1,     0.5,
                                   2,      -0.25, 1e300, -1e300,
                                   1e-320, kFar,  -kFar, std::numeric_limits<double>::quiet_NaN(),
                                   1.5,    1e10};
    constexpr int64_t kIntegers[] = {0,  1,  2, 3,  4,    5,           7,           -1,
                                     -2, -3, 8, 64, 1000, kMostExtent, -kMostExtent};
    const std::string texts[] = {"tanh",         "mean", "sum",      "none", "batchmean", "flash",
                                 "math_reduced", "fp16", "fp8_e4m3", "fp64", ""};
    switch (dice_.below(5)) {
      case 0:
        return dice_.one_in(2);
      case 1:
        return kIntegers[dice_.below(std::size(kIntegers))];
      case 2:
        return kNumbers[dice_.below(std::size(kNumbers))];
      case 3:
        return texts[dice_.below(std::size(texts))];
      default: {
        std::vector<int64_t> list;
        for (size_t left = dice_.below(5); left > 0; --left) {
          list.push_back(kIntegers[dice_.below(std::size(kIntegers))]);
        }
        return list;
      }
    }
  }

  // The operands have other shapes now; this value fits all of them.
  void replace(Node& node) {
    node.op = "tanh";
    node.attributes.clear();
    node.inputs = {last_float_};
    infer(node);
  }

  Graph graph_;
  Dice& dice_;
  std::map<std::string, TensorType> types_;
  std::vector<std::string> ids_;
  std::string last_float_;
};

}  // namespace

Graph odd_graph(Graph graph, Dice& dice) {
  return Mixer(std::move(graph), dice).mix();
}

}  // namespace lockstep::testing
