// Writes the IR as JSON, without a library: every number must read back with the same bits, and
// every node takes one line. json_reader.cc reads it.
#include "src/graph/json.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "src/core/text.h"

namespace lockstep {
namespace {

using Json = nlohmann::json;

std::string quoted(const std::string& text) {
  return Json(text).dump();
}

std::string number(double value) {
  if (std::isnan(value)) return "\"nan\"";
  if (std::isinf(value)) return value > 0 ? "\"inf\"" : "\"-inf\"";
  std::string text = fmt::format("{:.17g}", value);
  // 1 would read back as an integer.
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

template <typename Range, typename Write>
std::string list(const Range& range, Write write, std::string_view separator = ",") {
  std::vector<std::string> parts;
  for (const auto& item : range) parts.push_back(write(item));
  return "[" + join(parts, separator) + "]";
}

std::string integers(const std::vector<int64_t>& values) {
  return list(values, [](int64_t value) { return std::to_string(value); });
}

std::string object(const std::map<std::string, std::string>& values) {
  std::vector<std::string> parts;
  for (const auto& [key, value] : values) parts.push_back(quoted(key) + ":" + quoted(value));
  return "{" + join(parts, ",") + "}";
}

struct WriteAttribute {
  std::string operator()(bool value) const { return value ? "true" : "false"; }
  std::string operator()(int64_t value) const { return std::to_string(value); }
  std::string operator()(double value) const { return number(value); }
  std::string operator()(const std::string& value) const { return quoted(value); }
  std::string operator()(const std::vector<int64_t>& value) const { return integers(value); }
};

std::string attributes_text(const Attributes& attributes) {
  std::vector<std::string> parts;
  for (const auto& [key, value] : attributes) {
    parts.push_back(quoted(key) + ":" + std::visit(WriteAttribute(), value));
  }
  return "{" + join(parts, ",") + "}";
}

std::string type_fields(const TensorType& type) {
  return "\"shape\":" + integers(type.shape) +
         ",\"dtype\":" + (type.element == ElementType::kFloat ? "\"f32\"" : "\"i32\"");
}

std::string node_text(const Node& node) {
  std::string text =
      "{\"id\":" + quoted(node.id) + ",\"op\":" + quoted(node.op) +
      ",\"in\":" + list(node.inputs, quoted) + ",\"attrs\":" + attributes_text(node.attributes) +
      ",\"out\":" +
      list(node.outputs, [](const TensorType& type) { return "{" + type_fields(type) + "}"; }) +
      ",\"module\":" + quoted(node.layer) + ",\"src\":" + quoted(node.source_line);
  if (node.autocast != AutocastRegion::kUnsaid) {
    text += std::string(",\"autocast\":{\"enabled\":") +
            (node.autocast == AutocastRegion::kOn ? "true}" : "false}");
  }
  if (node.no_grad) text += ",\"nograd\":true";
  if (node.stat_exempt) text += ",\"stat_exempt\":true";
  if (node.is_backward()) {
    text += ",\"forward_node\":" + quoted(node.forward_node) +
            ",\"gradient_of\":" + list(node.gradient_of, quoted);
    if (node.pass != 0) text += ",\"pass\":" + std::to_string(node.pass);
  }
  return text + "}";
}

}  // namespace

std::string to_json(const Graph& graph) {
  const auto lines = [](const auto& range, auto write) {
    return range.empty() ? "[]" : "[\n  " + list(range, write, ",\n  ").substr(1);
  };
  std::string text = fmt::format("{{\"ir\":{},\"name\":{}", kIrVersion, quoted(graph.name));
  text += ",\n\"inputs\":" + lines(graph.inputs, [](const GraphInput& input) {
            return "{\"id\":" + quoted(input.id) + ",\"path\":" + quoted(input.path) + "," +
                   type_fields(input.type) + "}";
          });
  text += ",\n\"params\":" + lines(graph.parameters, [](const Parameter& p) {
            return "{\"name\":" + quoted(p.name) + "," + type_fields(p.type) +
                   ",\"requires_grad\":" + (p.requires_grad ? "true" : "false") +
                   ",\"module\":" + quoted(p.layer) + "}";
          });
  text += ",\n\"buffers\":" + lines(graph.buffers, [](const Buffer& b) {
            return "{\"name\":" + quoted(b.name) + "," + type_fields(b.type) +
                   ",\"module\":" + quoted(b.layer) + "}";
          });
  if (!graph.constants.empty()) {
    text += ",\n\"constants\":" + lines(graph.constants, [](const Constant& c) {
              return "{\"name\":" + quoted(c.name) + "," + type_fields(c.type) +
                     (c.stat_exempt ? ",\"stat_exempt\":true}" : "}");
            });
  }
  text += ",\n\"nodes\":" + lines(graph.nodes, node_text);
  text += ",\n\"loss\":" + quoted(graph.loss) + ",\n\"outputs\":" + object(graph.outputs);
  text += ",\n\"mutations\":" + lines(graph.mutations, [](const Mutation& mutation) {
            const auto [value, slot] = split_value_id(mutation.value);
            return "{\"buffer\":" + quoted(mutation.buffer) + ",\"value\":" + quoted(value) +
                   ",\"slot\":" + std::to_string(slot) + "}";
          });
  if (!graph.gradients.empty()) text += ",\n\"gradients\":" + object(graph.gradients);
  if (!graph.passes.empty()) {
    text += ",\n\"passes\":" + lines(graph.passes, [](const BackwardPass& pass) {
              return "{\"name\":" + quoted(pass.name) + ",\"loss\":" + quoted(pass.loss) +
                     ",\"seed\":" + quoted(pass.seed) + ",\"gradients\":" + object(pass.gradients) +
                     "}";
            });
  }
  return text + "}\n";
}

}  // namespace lockstep
