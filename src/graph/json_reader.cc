// Reads the IR from JSON: nlohmann's parser, then a check of every field, then validate(). Errors
// name the field's place, e.g. "nodes[3].out[0].shape".
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "emulation/format/format.h"
#include "src/core/error.h"
#include "src/core/text.h"
#include "src/graph/json.h"
#include "src/graph/json_text.h"
#include "src/graph/validate.h"

namespace lockstep {
namespace {

using Json = nlohmann::json;

// Reads fields and collects their problems. `path` is the place, e.g. "nodes[3].out[0]".
class Reader {
 public:
  Graph read(std::string_view text) {
    const Json json = parsed(text);
    if (!json.is_object()) throw InputError("graph JSON: must be an object");
    const int64_t version = integer(json, "graph", "ir");
    problems_.throw_if_any();
    if (version != kIrVersion) {
      throw InputError(fmt::format("graph JSON: ir is {}, must be {}", version, kIrVersion),
                       version > kIrVersion ? "a newer Lockstep wrote it" : "");
    }
    Graph graph;
    graph.name = string(json, "graph", "name", /*required=*/false);
    for_each(json, "inputs", [&](const Json& item, const std::string& path) {
      graph.inputs.push_back({string(item, path, "id"), string(item, path, "path", false),
                              type(item, path), format(item, path),
                              boolean(item, path, "requires_grad", false)});
    });
    for_each(json, "params", [&](const Json& item, const std::string& path) {
      graph.parameters.push_back({string(item, path, "name"), type(item, path),
                                  boolean(item, path, "requires_grad", true),
                                  string(item, path, "module", false), format(item, path)});
    });
    for_each(json, "buffers", [&](const Json& item, const std::string& path) {
      graph.buffers.push_back({string(item, path, "name"), type(item, path),
                               string(item, path, "module", false), format(item, path)});
    });
    for_each(json, "constants", [&](const Json& item, const std::string& path) {
      graph.constants.push_back({string(item, path, "name"), type(item, path), nullptr,
                                 boolean(item, path, "stat_exempt", false), format(item, path)});
    });
    for_each(json, "nodes", [&](const Json& item, const std::string& path) {
      graph.nodes.push_back(node(item, path));
    });
    graph.loss = string(json, "graph", "loss", false);
    graph.outputs = strings_by_name(json, "graph", "outputs");
    for_each(json, "mutations", [&](const Json& item, const std::string& path) {
      const std::string value = string(item, path, "value");
      const int64_t slot = item.contains("slot") ? integer(item, path, "slot") : 0;
      graph.mutations.push_back(
          {string(item, path, "buffer"), slot == 0 ? value : value + "." + std::to_string(slot)});
    });
    graph.gradients = strings_by_name(json, "graph", "gradients");
    for_each(json, "passes", [&](const Json& item, const std::string& path) {
      graph.passes.push_back({string(item, path, "name"), string(item, path, "loss"),
                              string(item, path, "seed"),
                              strings_by_name(item, path, "gradients")});
    });
    problems_.throw_if_any();
    return graph;
  }

 private:
  static Json parsed(std::string_view text) {
    try {
      return parse_json(text);
    } catch (const InputError& error) {
      throw InputError(std::string("graph JSON: ") + error.what());
    }
  }

  // The beginning of a value, short enough for an error message.
  static std::string quoted(const Json& value) {
    constexpr size_t kShown = 100;
    return printable(value.dump(), kShown);
  }

  void add_problem(const std::string& path, std::string_view key, const std::string& constraint,
                   const Json* found = nullptr) {
    problems_.add(path + "." + std::string(key) +
                  (found ? ": is " + quoted(*found) + ", must be " : ": is missing, must be ") +
                  constraint);
  }

  // Null if the field is absent or JSON's null; this is a problem if the field is required.
  const Json* field(const Json& item, const std::string& path, const char* key, bool required,
                    const char* constraint) {
    if (!item.is_object()) {
      problems_.add(path + ": must be an object");
      return nullptr;
    }
    const auto found = item.find(key);
    if (found != item.end() && !found->is_null()) return &*found;
    if (required) add_problem(path, key, constraint);
    return nullptr;
  }

  std::string string(const Json& item, const std::string& path, const char* key,
                     bool required = true) {
    const Json* found = field(item, path, key, required, "a string");
    if (!found) return "";
    if (!found->is_string()) {
      add_problem(path, key, "a string", found);
      return "";
    }
    return checked_text(found->get<std::string>(), path + "." + key);
  }

  std::string checked_text(std::string text, const std::string& place) {
    if (text.size() <= kMostTextBytes && printable(text) == text) return text;
    problems_.add(fmt::format("{}: is {}, must have at most {} bytes and no control characters",
                              place, quoted(text), kMostTextBytes));
    return "";
  }

  bool boolean(const Json& item, const std::string& path, const char* key, bool fallback) {
    const Json* found = field(item, path, key, false, "");
    if (!found) return fallback;
    if (found->is_boolean()) return found->get<bool>();
    add_problem(path, key, "true or false", found);
    return fallback;
  }

  static bool is_small(const Json& value) {
    if (value.is_number_unsigned()) return value.get<uint64_t>() <= uint64_t{kMostExtent};
    return value.is_number_integer() && std::abs(value.get<double>()) <= kMostExtent;
  }

  int64_t integer(const Json& item, const std::string& path, const char* key) {
    const Json* found = field(item, path, key, true, "an integer");
    if (!found) return 0;
    if (is_small(*found)) return found->get<int64_t>();
    add_problem(path, key, kInteger, found);
    return 0;
  }

  template <typename Body>
  void for_each(const Json& item, const char* key, Body body, const std::string& path = "graph",
                bool required = false) {
    const Json* found = field(item, path, key, required, "a list");
    if (!found) return;
    if (!found->is_array()) return add_problem(path, key, "a list", found);
    for (size_t i = 0; i < found->size() && problems_.count() < ProblemList::kMostKept; ++i) {
      const std::string place = path == "graph" ? key : path + "." + key;
      body((*found)[i], fmt::format("{}[{}]", place, i));
    }
  }

  std::vector<std::string> strings(const Json& item, const std::string& path, const char* key,
                                   bool required) {
    std::vector<std::string> values;
    for_each(
        item, key,
        [&](const Json& value, const std::string& place) {
          if (value.is_string()) {
            values.push_back(checked_text(value.get<std::string>(), place));
          } else {
            problems_.add(place + ": is " + quoted(value) + ", must be a string");
          }
        },
        path, required);
    return values;
  }

  std::map<std::string, std::string> strings_by_name(const Json& json, const std::string& path,
                                                     const char* key) {
    std::map<std::string, std::string> values;
    const Json* found = field(json, path, key, false, "");
    if (!found) return values;
    if (!found->is_object()) {
      add_problem(path, key, "an object", found);
      return values;
    }
    for (const auto& [name, value] : found->items()) {
      values[checked_text(name, path + "." + key)] = string(*found, key, name.c_str());
    }
    return values;
  }

  TensorType type(const Json& item, const std::string& path) {
    TensorType type;
    for_each(
        item, "shape",
        [&](const Json& extent, const std::string& place) {
          if (is_small(extent)) {
            type.shape.push_back(extent.get<int64_t>());
          } else {
            problems_.add(place + ": is " + quoted(extent) + ", must be " + kInteger);
          }
        },
        path, /*required=*/true);
    check_size(type.shape, path);
    const std::string dtype = string(item, path, "dtype");
    if (dtype == "i32" || dtype == "i64") {
      type.element = ElementType::kInt;
    } else if (dtype != "f32" && !dtype.empty()) {
      problems_.add(path + ".dtype: is '" + dtype + "', must be f32, i32 or i64");
    }
    return type;
  }

  std::string format(const Json& item, const std::string& path) {
    const std::string name = string(item, path, "format", false);
    if (name.empty()) return name;
    try {
      return find_format(name).name;
    } catch (const InputError& error) {
      problems_.add(path + ".format: " + error.what());
      return "";
    }
  }

  void check_size(Shape& shape, const std::string& path) {
    double count = 1;
    for (const int64_t extent : shape) count *= static_cast<double>(extent);
    if (shape.size() <= kMostRank && count <= kMostElements) return;
    problems_.add(
        fmt::format("{}.shape: has {} dimensions and {:.3g} elements, at most {} and {:.3g} "
                    "allowed",
                    path, shape.size(), count, kMostRank, kMostElements));
    shape.clear();
  }

  Attributes attributes(const Json& item, const std::string& path) {
    Attributes attributes;
    const Json* found = field(item, path, "attrs", false, "");
    if (!found) return attributes;
    if (!found->is_object()) {
      add_problem(path, "attrs", "an object", found);
      return attributes;
    }
    for (const auto& [key, value] : found->items()) {
      checked_text(key, path + ".attrs");
      if (value.is_boolean()) {
        attributes[key] = value.get<bool>();
      } else if (is_small(value)) {
        attributes[key] = value.get<int64_t>();
      } else if (value.is_number_float()) {
        attributes[key] = value.get<double>();
      } else if (value.is_string()) {
        attributes[key] = text_attribute(checked_text(value.get<std::string>(), path + ".attrs"));
      } else if (value.is_array() && std::all_of(value.begin(), value.end(), is_small)) {
        attributes[key] = value.get<std::vector<int64_t>>();
      } else {
        add_problem(path + ".attrs", key,
                    "a bool, a number, a string or a list, its integers in [-(2^31-1), 2^31-1]",
                    &value);
      }
    }
    return attributes;
  }

  static Attribute text_attribute(const std::string& text) {
    if (text == "inf") return std::numeric_limits<double>::infinity();
    if (text == "-inf") return -std::numeric_limits<double>::infinity();
    if (text == "nan") return std::numeric_limits<double>::quiet_NaN();
    return text;
  }

  Node node(const Json& item, const std::string& path) {
    Node node;
    node.id = string(item, path, "id");
    node.op = string(item, path, "op");
    node.inputs = strings(item, path, "in", /*required=*/true);
    node.attributes = attributes(item, path);
    for_each(
        item, "out",
        [&](const Json& output, const std::string& place) {
          node.outputs.push_back(type(output, place));
        },
        path, /*required=*/true);
    node.layer = string(item, path, "module", false);
    node.source_line = string(item, path, "src", false);
    node.torch_op = string(item, path, "aten", false);
    node.forward_node = string(item, path, "forward_node", false);
    node.gradient_of = strings(item, path, "gradient_of", /*required=*/false);
    if (item.is_object() && item.contains("pass")) {
      node.pass = static_cast<int>(integer(item, path, "pass"));
    }
    node.autocast = region(item, path);
    node.no_grad = boolean(item, path, "nograd", false);
    node.stat_exempt = boolean(item, path, "stat_exempt", false);
    node.backward = recorded_backward(item, path);
    return node;
  }

  std::shared_ptr<const RecordedBackward> recorded_backward(const Json& item,
                                                            const std::string& path) {
    const Json* found = field(item, path, "backward", false, "");
    if (!found) return nullptr;
    if (path.find(kBackward) != std::string::npos) {
      add_problem(path, "backward", "absent inside of a recorded backward pass");
      return nullptr;
    }
    auto recorded = std::make_shared<RecordedBackward>();
    const std::string place = path + std::string(kBackward);
    for_each(
        *found, "nodes",
        [&](const Json& inner, const std::string& at) {
          recorded->nodes.push_back(node(inner, at));
        },
        place, /*required=*/true);
    recorded->gradients = strings(*found, place, "gradients", /*required=*/true);
    return recorded;
  }

  // The innermost region decides, as in torch. The policy handles its dtype; a capture's
  // reader compares it with that of the run.
  AutocastRegion region(const Json& item, const std::string& path) {
    const Json* found = field(item, path, "autocast", false, "");
    if (!found) return AutocastRegion::kUnsaid;
    if (!found->is_object() || !found->contains("enabled")) {
      add_problem(path, "autocast", "an object with 'enabled'", found);
      return AutocastRegion::kUnsaid;
    }
    return boolean(*found, path + ".autocast", "enabled", true) ? AutocastRegion::kOn
                                                                : AutocastRegion::kOff;
  }

  static constexpr std::string_view kBackward = ".backward";
  static constexpr const char* kInteger = "an integer in [-(2^31-1), 2^31-1]";
  ProblemList problems_{"graph JSON"};
};

}  // namespace

Graph graph_from_json(std::string_view json) {
  Graph graph = Reader().read(json);
  validate(graph);
  return graph;
}

}  // namespace lockstep
