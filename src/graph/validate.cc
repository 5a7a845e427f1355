// Walks the nodes in execution order, tracks the values defined so far, and collects all problems.
#include "src/graph/validate.h"

#include <map>
#include <new>
#include <set>
#include <stdexcept>
#include <string>

#include "src/core/error.h"
#include "src/graph/infer.h"
#include "src/graph/ir.h"

namespace lockstep {
namespace {

class Validator {
 public:
  explicit Validator(const Graph& graph) : graph_(graph), problems_("graph '" + graph.name + "'") {}

  void run() {
    for (const GraphInput& input : graph_.inputs) define_input(input);
    for (const Parameter& p : graph_.parameters) {
      define("p:" + p.name, p.type);
      if (p.type.element != ElementType::kFloat) {
        problems_.add("parameter '" + p.name + "': must be floating, is " + to_string(p.type));
      }
    }
    for (const Buffer& b : graph_.buffers) define("b:" + b.name, b.type);
    for (const Constant& c : graph_.constants) define_constant(c);
    for (const Node& node : graph_.nodes) check_node(node);
    check_results();
    problems_.throw_if_any();
  }

 private:
  void define(const std::string& id, const TensorType& type) {
    for (const int64_t extent : type.shape) {
      if (extent < 1) {
        problems_.add("value '" + id + "': every extent must be at least 1, is " +
                      to_string(type.shape));
        break;
      }
    }
    if (!defined_.emplace(id, type).second) {
      problems_.add("value '" + id + "': defined twice", "ids must be unique");
    }
  }

  void define_input(const GraphInput& input) {
    const bool numbered = input.id.starts_with("in") && input.id.size() > 2 &&
                          input.id.find_first_not_of("0123456789", 2) == std::string::npos;
    if (!numbered && !is_seed(input.id)) {
      problems_.add("input '" + input.id + "': must be named in<NUMBER>, " +
                    std::string(kLossSeedId) + " or " + std::string(kPassSeedPrefix) + "<LOSS>");
    }
    define(input.id, input.type);
  }

  void define_constant(const Constant& constant) {
    define("c:" + constant.name, constant.type);
    if (constant.data == nullptr) return;
    const bool is_int = constant.data->container() == Container::kI32;
    if (constant.data->shape() != constant.type.shape ||
        is_int != (constant.type.element == ElementType::kInt)) {
      problems_.add("constant '" + constant.name + "': its data are " +
                    std::string(is_int ? "i32" : "f32") + to_string(constant.data->shape()) +
                    ", must be " + to_string(constant.type));
    }
  }

  // Null, with a problem added, if no value of that name is defined yet.
  const TensorType* use(const std::string& user, const std::string& value) {
    const auto found = defined_.find(value);
    if (found != defined_.end()) return &found->second;
    problems_.add(user + ": value '" + value + "' is not defined before its use",
                  "nodes must be in execution order");
    return nullptr;
  }

  void check_node(const Node& node) {
    const std::string who = "node '" + node.id + "' (" + node.op + ")";
    constexpr size_t kMostDigits = 18;  // any such number is an int64
    if (node.id.size() < 2 || node.id.size() > 1 + kMostDigits || node.id[0] != 'n' ||
        node.id.find_first_not_of("0123456789", 1) != std::string::npos) {
      problems_.add("node '" + node.id + "': must be named n<NUMBER>");
    }
    std::vector<TensorType> inputs;
    for (const std::string& value : node.inputs) {
      if (const TensorType* type = use(who, value)) inputs.push_back(*type);
    }
    if (inputs.size() == node.inputs.size()) check_outputs(node, who, inputs);
    check_backward(node, who);
    for (size_t i = 0; i < node.outputs.size(); ++i) define(output_id(node, i), node.outputs[i]);
    if (!node.is_backward()) forward_nodes_.insert(node.id);
  }

  void check_outputs(const Node& node, const std::string& who,
                     const std::vector<TensorType>& inputs) {
    try {
      const std::vector<TensorType> expected = infer_outputs(node, inputs);
      if (expected.size() != node.outputs.size()) {
        problems_.add(who + ": has " + std::to_string(node.outputs.size()) +
                      " outputs, its op gives " + std::to_string(expected.size()));
        return;
      }
      for (size_t i = 0; i < expected.size(); ++i) {
        if (expected[i] == node.outputs[i]) continue;
        problems_.add(who + ": output " + std::to_string(i) + " is " + to_string(node.outputs[i]) +
                      ", its op gives " + to_string(expected[i]));
      }
    } catch (const InputError& error) {
      for (const std::string& problem : error.problems()) problems_.add(problem);
    } catch (const std::logic_error& error) {  // an attribute of the wrong type
      problems_.add(who + ": " + error.what());
    } catch (const std::bad_alloc&) {  // element_count overflows
      problems_.add(who + ": its attributes give more elements than an int64 can count");
    }
  }

  void check_backward(const Node& node, const std::string& who) {
    if (!node.is_backward()) {
      if (!node.gradient_of.empty()) {
        problems_.add(who + ": has gradient_of but no forward_node");
      }
      return;
    }
    if (node.pass < 0 || static_cast<size_t>(node.pass) >= pass_count(graph_)) {
      problems_.add(who + ": backward pass " + std::to_string(node.pass) + ", the graph has " +
                    std::to_string(pass_count(graph_)));
    }
    if (!forward_nodes_.contains(node.forward_node)) {
      problems_.add(who + ": forward_node '" + node.forward_node +
                    "' is not an earlier forward node");
    }
    if (node.gradient_of.size() != node.outputs.size()) {
      problems_.add(who + ": gradient_of has " + std::to_string(node.gradient_of.size()) +
                    " entries, must have one per output (" + std::to_string(node.outputs.size()) +
                    ")");
      return;
    }
    for (size_t i = 0; i < node.outputs.size(); ++i) {
      if (node.gradient_of[i].empty()) continue;
      const TensorType* type = use(who, node.gradient_of[i]);
      if (type && *type != node.outputs[i]) {
        problems_.add(who + ": output " + std::to_string(i) + " is " + to_string(node.outputs[i]) +
                      ", but the gradient of '" + node.gradient_of[i] + "' must be " +
                      to_string(*type));
      }
    }
  }

  void check_results() {
    if (!graph_.loss.empty()) check_scalar("loss", graph_.loss);
    for (const auto& [name, value] : graph_.outputs) use("output '" + name + "'", value);
    for (const Mutation& mutation : graph_.mutations) {
      check_pair("mutation of buffer '" + mutation.buffer + "'", "b:" + mutation.buffer,
                 mutation.value);
    }
    for (const auto& [parameter, value] : graph_.gradients) {
      check_pair("gradient of parameter '" + parameter + "'", "p:" + parameter, value);
    }
    for (const BackwardPass& pass : graph_.passes) check_pass(pass);
  }

  void check_pass(const BackwardPass& pass) {
    const std::string who = "backward pass '" + pass.name + "'";
    check_scalar(who + ": loss", pass.loss);
    check_scalar(who + ": seed", pass.seed);
    if (!is_seed(pass.seed)) {
      problems_.add(who + ": seed '" + pass.seed + "': must be named " +
                    std::string(kPassSeedPrefix) + "<LOSS>");
    }
    for (const auto& [parameter, value] : pass.gradients) {
      check_pair(who + ", gradient of parameter '" + parameter + "'", "p:" + parameter, value);
    }
  }

  void check_scalar(const std::string& who, const std::string& value) {
    const TensorType* type = use(who, value);
    if (type && *type != TensorType{}) {
      problems_.add(who + " '" + value + "': must be a floating scalar, is " + to_string(*type));
    }
  }

  void check_pair(const std::string& who, const std::string& target, const std::string& value) {
    const TensorType* to = use(who, target);
    const TensorType* from = use(who, value);
    if (to && from && *to != *from) {
      problems_.add(who + ": value '" + value + "' is " + to_string(*from) + ", must be " +
                    to_string(*to));
    }
  }

  const Graph& graph_;
  ProblemList problems_;
  std::map<std::string, TensorType> defined_;
  std::set<std::string> forward_nodes_;
};

}  // namespace

void validate(const Graph& graph) {
  Validator(graph).run();
}

}  // namespace lockstep
