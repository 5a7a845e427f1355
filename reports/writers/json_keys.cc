// The table of keys and the JSON Schema of an object's rows.
#include "reports/writers/json_keys.h"

#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>

namespace lockstep {
namespace {

using nlohmann::ordered_json;
using Kind = JsonType::Kind;

std::string type_word(const JsonType& type) {
  const std::string null = type.may_be_null ? ", null" : "";
  switch (type.kind) {
    case Kind::kBoolean:
      return "true, false" + null;
    case Kind::kInteger:
      return "integer" + null;
    case Kind::kNumber:
      return "number" + null;
    case Kind::kText:
      return "text" + null;
    case Kind::kObject:
      return type.shape().name.empty() ? "object" : type.shape().name;
    case Kind::kList:
    case Kind::kMap: {
      const std::string item = type_word(*type.item);
      return (type.kind == Kind::kList ? "list" : "object") +
             (item == "object" ? "" : " of " + item);
    }
  }
  return "";
}

// "`plain`, `fp32`": of a key whose values say enough.
std::string meaning_of(const JsonKeyText& key) {
  if (!key.meaning.empty()) return key.meaning;
  std::string text;
  for (const ordered_json& value : key.values) {
    text += (text.empty() ? "" : ", ");
    text += value.is_string() ? "`" + value.get<std::string>() + "`" : value.dump();
  }
  return text;
}

// Walks an object and what is in it, depth first.
struct KeyTable {
  std::vector<std::string> named;  // objects that have their lines, or are in another table
  std::vector<const JsonShape*> later = {};
  std::vector<JsonKeyLine> lines = {};

  void add(const JsonShape& shape, const std::string& path) {
    for (const JsonKeyText& key : shape.keys) {
      lines.push_back({path + key.name, type_word(key.type), meaning_of(key)});
      add_below(key.type, path + key.name);
    }
  }
  void add_below(const JsonType& type, const std::string& path) {
    if (type.kind == Kind::kList) return add_below(*type.item, path + "[]");
    if (type.kind == Kind::kMap && type.item->kind == Kind::kObject) {
      return add_below(*type.item, path + ".NAME");
    }
    if (type.kind != Kind::kObject) return;
    const JsonShape& shape = type.shape();
    if (shape.name.empty()) return add(shape, path + ".");
    if (std::ranges::count(named, shape.name) > 0) return;
    named.push_back(shape.name);
    later.push_back(&shape);
  }
};

ordered_json object_schema(const JsonShape& shape, struct Definitions& definitions);

struct Definitions {
  const JsonSchemaText& text;
  ordered_json found = ordered_json::object();

  ordered_json refer(const JsonShape& shape) {
    if (shape.name == text.other_name) return {{"$ref", text.other_file}};
    if (text.other_file.empty() && !found.contains(shape.name)) {
      found[shape.name] = nullptr;  // before what is in it
      found[shape.name] = object_schema(shape, *this);
    }
    return {{"$ref", text.other_file + "#/$defs/" + shape.name}};
  }
};

ordered_json type_schema(const JsonType& type, Definitions& definitions) {
  const auto of = [&](const char* name) {
    return type.may_be_null ? ordered_json{{"type", {name, "null"}}} : ordered_json{{"type", name}};
  };
  switch (type.kind) {
    case Kind::kBoolean:
      return of("boolean");
    case Kind::kInteger: {
      ordered_json out = of("integer");
      if (!type.may_be_negative) out["minimum"] = 0;
      return out;
    }
    case Kind::kNumber:
      return of("number");
    case Kind::kText:
      return of("string");
    case Kind::kList:
      return {{"type", "array"}, {"items", type_schema(*type.item, definitions)}};
    case Kind::kMap:
      return {{"type", "object"}, {"additionalProperties", type_schema(*type.item, definitions)}};
    case Kind::kObject:
      break;
  }
  return type.shape().name.empty() ? object_schema(type.shape(), definitions)
                                   : definitions.refer(type.shape());
}

ordered_json object_schema(const JsonShape& shape, Definitions& definitions) {
  ordered_json out = {{"type", "object"},
                      {"required", ordered_json::array()},
                      {"properties", ordered_json::object()}};
  for (const JsonKeyText& key : shape.keys) {
    if (!key.is_optional) out["required"].push_back(key.name);
    ordered_json& schema = out["properties"][key.name];
    schema = type_schema(key.type, definitions);
    if (!key.values.empty()) schema = {{"enum", key.values}};
    if (key.values.size() == 1) schema = {{"const", key.values.front()}};
  }
  if (!shape.rules.empty()) out.update(ordered_json::parse(shape.rules));
  return out;
}

}  // namespace

std::vector<JsonKeyLine> json_key_lines(const JsonShape& shape,
                                        const std::vector<std::string>& elsewhere) {
  KeyTable table{.named = elsewhere};
  table.add(shape, "");
  for (size_t i = 0; i < table.later.size(); ++i) {
    std::string prefix = table.later[i]->name + ".";
    for (char& c : prefix) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
    table.add(*table.later[i], prefix);
  }
  return std::move(table.lines);
}

std::string json_schema(const JsonShape& shape, const JsonSchemaText& text) {
  Definitions definitions{.text = text};
  ordered_json out = {{"$schema", "https://json-schema.org/draft/2020-12/schema"},
                      {"title", text.title},
                      {"description", text.description}};
  out.update(object_schema(shape, definitions));
  if (!definitions.found.empty()) out["$defs"] = definitions.found;
  return json_page(out);
}

}  // namespace lockstep
