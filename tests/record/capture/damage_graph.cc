// Damage to the JSON of a graph.
#include <limits>
#include <nlohmann/json.hpp>

#include "src/graph/op.h"
#include "tests/record/capture/capture_file.h"
#include "tests/record/capture/damage.h"

namespace lockstep::testing {
namespace {

using Json = nlohmann::json;

void collect(Json& json, std::vector<Json*>& places) {
  places.push_back(&json);
  for (Json& child : json) {
    if (child.is_structured()) {
      collect(child, places);
    } else if (!child.is_null()) {
      places.push_back(&child);
    }
  }
}

Json odd_json(Dice& dice) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  const std::vector<Json> values = {0,
                                    1,
                                    -1,
                                    2,
                                    3,
                                    5,
                                    -7,
                                    1000,
                                    100000,
                                    4294967296,
                                    1LL << 40,
                                    kMost,
                                    -kMost - 1,
                                    18446744073709551615ULL,
                                    0.5,
                                    -0.5,
                                    1e300,
                                    1e-300,
                                    "inf",
                                    "nan",
                                    "-inf",
                                    true,
                                    false,
                                    nullptr,
                                    "",
                                    "n0",
                                    "n3",
                                    "in0",
                                    "p:w",
                                    "c:mask",
                                    "text",
                                    Json::array(),
                                    Json::object(),
                                    Json::array({1, 1}),
                                    Json::array({0, 0}),
                                    Json::array({-1, 2}),
                                    Json::array({1LL << 31, 1LL << 31, 1LL << 31}),
                                    Json::array({1, 1, 1, 1, 1, 1, 1, 1, 1, 1}),
                                    "a\x1b[2Jb",
                                    "i32",
                                    "f32",
                                    std::string(70000, 'x')};
  return values[dice.below(values.size())];
}

std::string deep(size_t depth) {
  return std::string(depth, '[') + std::string(depth, ']');
}

// A list of the graph, e.g. its nodes; null where it is empty.
Json* list_of(Json& graph, const char* key) {
  const auto found = graph.find(key);
  return found == graph.end() || !found->is_array() || found->empty() ? nullptr : &*found;
}

std::string damage_node(Json& graph, Dice& dice) {
  Json* nodes = list_of(graph, "nodes");
  if (nodes == nullptr) return "no nodes";
  Json& node = (*nodes)[dice.below(nodes->size())];
  const std::string who = node.value("id", "?") + " " + node.value("op", "?");
  switch (dice.below(8)) {
    case 0: {
      const auto all = ops();
      node["op"] = all[dice.below(all.size())].name;
      return who + ": another op";
    }
    case 1: {
      Json& inputs = node["in"];
      if (inputs.empty()) return who + ": no operand";
      dice.pick(inputs) = "n" + std::to_string(dice.below(nodes->size()));
      return who + ": another operand";
    }
    case 2:
      node["in"].push_back("n0");
      return who + ": one operand more";
    case 3:
      if (!node["in"].empty()) node["in"].erase(dice.below(node["in"].size()));
      return who + ": one operand less";
    case 4:
      node["id"] = "n" + std::to_string(dice.below(nodes->size()));
      return who + ": id of another";
    case 5:
      nodes->erase(dice.below(nodes->size()));
      return "a node dropped";
    default: {  // an attribute that it has, or that its op knows
      const auto row = std::ranges::find(ops(), node.value("op", ""), &OpDef::name);
      if (row == ops().end() || row->attributes.empty()) return who + ": has no attributes";
      const std::string name(row->attributes[dice.below(row->attributes.size())]);
      node["attrs"][name] = odd_json(dice);
      return who + ": attribute " + name + " is " + node["attrs"][name].dump().substr(0, 50);
    }
  }
}

std::string damage_letters(std::string& text, Dice& dice) {
  switch (dice.below(6)) {
    case 0:
      text.resize(dice.below(text.size()));
      return "truncated";
    case 1:
      text = deep(100000);
      return "nothing but brackets";
    case 2:
      text.replace(text.find("\"attrs\":{") + 9, 0, "\"deep\":" + deep(20000) + ",");
      return "a deep attribute";
    case 3:
      text.replace(text.find("\"attrs\":{") + 9, 0, "\"p\":1e999,");
      return "a number beyond double";
    case 4:
      text.insert(dice.below(text.size()), "\xff\xfe");
      return "bytes that are not UTF-8";
    default:
      for (size_t flips = 1 + dice.below(3); flips > 0; --flips) {
        dice.pick(text) ^= static_cast<char>(1U << dice.below(7));
      }
      return "flipped bits";
  }
}

}  // namespace

std::string damage_graph(StoredNode& tree, Dice& dice) {
  StoredNode& node = tree.children.at("graphs").children.at("0").children.at("json");
  std::string text = node.data->bytes, done;
  Json graph = Json::parse(text);
  switch (dice.below(8)) {
    case 0:
      done = damage_letters(text, dice);
      node.data = json_value(text);
      return "graph: " + done;
    case 1: {
      std::vector<Json*> places;
      collect(graph, places);
      *dice.pick(places) = odd_json(dice);
      done = "a value replaced";
      break;
    }
    case 2: {
      const char* const keys[] = {"inputs", "params",    "buffers", "constants", "nodes",
                                  "loss",   "mutations", "outputs", "ir"};
      const char* key = keys[dice.below(std::size(keys))];
      Json* list = list_of(graph, key);
      if (list != nullptr && dice.one_in(2)) {
        list->push_back((*list)[dice.below(list->size())]);
        done = std::string(key) + ": one doubled";
      } else if (list != nullptr && dice.one_in(2)) {
        list->erase(dice.below(list->size()));
        done = std::string(key) + ": one dropped";
      } else {
        graph[key] = odd_json(dice);
        done = std::string(key) + " replaced";
      }
      break;
    }
    case 3:
      graph["loss"] = "n" + std::to_string(dice.below(graph["nodes"].size()));
      done = "another loss";
      break;
    default:
      done = damage_node(graph, dice);
  }
  node.data = json_value(graph.dump());
  return "graph: " + done;
}

}  // namespace lockstep::testing
