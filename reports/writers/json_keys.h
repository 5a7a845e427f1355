// The keys of a JSON object as rows: name, getter, meaning. The writer, the JSON Schema and the
// table of keys in docs/ derive from the rows. The type follows from what the getter returns:
//   bool                         true, false
//   an integer, unsigned: >= 0   integer
//   double                       number; null if it is not finite
//   text                         text
//   std::vector<X>               list of X
//   std::map<std::string, X>     object: an X for every name; also a vector of such pairs
//   OrNull<X>                    X, null if it has no value
//   std::optional<X>, const X*   X; the key is absent without a value
//   T with json_object(const T*) object with those keys
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "reports/writers/json_text.h"

namespace lockstep {

struct JsonShape;

struct JsonType {
  enum class Kind : uint8_t { kBoolean, kInteger, kNumber, kText, kList, kMap, kObject };
  Kind kind = Kind::kText;
  bool may_be_null = false;
  bool may_be_negative = true;
  std::shared_ptr<const JsonType> item = nullptr;  // of a list or a map
  const JsonShape& (*shape)() = nullptr;           // of an object
};

// A row without its getter.
struct JsonKeyText {
  std::string name;
  JsonType type = {};
  bool is_optional = false;
  std::string meaning;
  std::vector<nlohmann::ordered_json> values = {};  // the only ones; empty: all of the type
};

// An object without its getters.
struct JsonShape {
  std::string name;   // of an object that several keys have: "place"; empty: only one has it
  std::string rules;  // of the schema, in addition to the keys: JSON text
  std::vector<JsonKeyText> keys = {};
};

template <class X>
struct OrNull {
  std::optional<X> value;
};

template <class V>
inline constexpr bool kIsList = false;
template <class X>
inline constexpr bool kIsList<std::vector<X>> = true;
template <class V>
inline constexpr bool kIsMap = false;
template <class X>
inline constexpr bool kIsMap<std::map<std::string, X>> = true;
template <class X>
inline constexpr bool kIsMap<std::vector<std::pair<std::string, X>>> = true;
template <class V>
inline constexpr bool kIsOrNull = false;
template <class X>
inline constexpr bool kIsOrNull<OrNull<X>> = true;
template <class V>
inline constexpr bool kIsOptional = std::is_pointer_v<V> && !std::is_convertible_v<V, const char*>;
template <class X>
inline constexpr bool kIsOptional<std::optional<X>> = true;

template <class V>
JsonType json_type() {
  using Kind = JsonType::Kind;
  if constexpr (std::is_same_v<V, bool>) {
    return {.kind = Kind::kBoolean};
  } else if constexpr (std::is_integral_v<V>) {
    return {.kind = Kind::kInteger, .may_be_negative = std::is_signed_v<V>};
  } else if constexpr (std::is_floating_point_v<V>) {
    return {.kind = Kind::kNumber, .may_be_null = true};
  } else if constexpr (std::is_convertible_v<V, std::string_view>) {
    return {.kind = Kind::kText};
  } else if constexpr (kIsOrNull<V>) {
    JsonType type = json_type<typename decltype(V::value)::value_type>();
    type.may_be_null = true;
    return type;
  } else if constexpr (kIsMap<V>) {
    using X = typename V::value_type::second_type;
    return {.kind = Kind::kMap, .item = std::make_shared<JsonType>(json_type<X>())};
  } else if constexpr (kIsList<V>) {
    using X = typename V::value_type;
    return {.kind = Kind::kList, .item = std::make_shared<JsonType>(json_type<X>())};
  } else {
    return {.kind = Kind::kObject, .shape = +[]() -> const JsonShape& {
              return json_object(static_cast<const V*>(nullptr));
            }};
  }
}

template <class V>
nlohmann::ordered_json json_value(const V& value) {
  using nlohmann::ordered_json;
  if constexpr (std::is_floating_point_v<V>) {
    return json_number(static_cast<double>(value));
  } else if constexpr (std::is_integral_v<V> || std::is_convertible_v<V, std::string_view>) {
    return value;
  } else if constexpr (kIsOrNull<V>) {
    return value.value ? json_value(*value.value) : ordered_json(nullptr);
  } else if constexpr (kIsMap<V>) {
    ordered_json out = ordered_json::object();
    for (const auto& [name, item] : value) out[name] = json_value(item);
    return out;
  } else if constexpr (kIsList<V>) {
    ordered_json out = ordered_json::array();
    for (const auto& item : value) out.push_back(json_value(item));
    return out;
  } else {
    return json_object(&value).write(value);
  }
}

template <class T>
struct JsonKey {
  JsonKeyText text;
  std::function<void(const T&, nlohmann::ordered_json& out)> add;

  template <class Get>
  JsonKey(std::string name, Get get, std::string meaning = "",
          std::vector<nlohmann::ordered_json> values = {}) {
    using V = std::remove_cvref_t<std::invoke_result_t<Get, const T&>>;
    text = {.name = name, .meaning = std::move(meaning), .values = std::move(values)};
    if constexpr (kIsOptional<V>) {
      text.is_optional = true;
      text.type = json_type<std::remove_cvref_t<decltype(*std::declval<V>())>>();
      add = [name, get](const T& of, nlohmann::ordered_json& out) {
        if (const V value = std::invoke(get, of)) out[name] = json_value(*value);
      };
    } else {
      text.type = json_type<V>();
      add = [name, get](const T& of, nlohmann::ordered_json& out) {
        out[name] = json_value(std::invoke(get, of));
      };
    }
  }
  JsonKey() = default;
};

// Defined once for each type, next to its rows: const JsonObject<T>& json_object(const T*).
template <class T>
struct JsonObject : JsonShape {
  std::vector<JsonKey<T>> rows;

  JsonObject(std::string its_name, std::vector<JsonKey<T>> its_rows, std::string its_rules = "")
      : JsonShape{.name = std::move(its_name), .rules = std::move(its_rules)},
        rows(std::move(its_rows)) {
    for (const JsonKey<T>& row : rows) keys.push_back(row.text);
  }

  JsonObject& more(std::vector<JsonKey<T>> next) {
    for (JsonKey<T>& row : next) {
      keys.push_back(row.text);
      rows.push_back(std::move(row));
    }
    return *this;
  }
  // The keys of a part come next. `get`: the part, an std::optional of it or a pointer to it.
  template <class Get>
  JsonObject& also(Get get) {
    using V = std::remove_cvref_t<std::invoke_result_t<Get, const T&>>;
    if constexpr (kIsOptional<V>) {
      using Part = std::remove_cvref_t<decltype(*std::declval<V>())>;
      add_part(json_object(static_cast<const Part*>(nullptr)), true,
               [get](const T& of) { return std::invoke(get, of); });
    } else {
      add_part(json_object(static_cast<const V*>(nullptr)), false,
               [get](const T& of) { return &std::invoke(get, of); });
    }
    return *this;
  }

  nlohmann::ordered_json write(const T& of) const {
    nlohmann::ordered_json out = nlohmann::ordered_json::object();
    for (const JsonKey<T>& row : rows) row.add(of, out);
    return out;
  }

 private:
  template <class Part, class Find>
  void add_part(const JsonObject<Part>& part, bool is_optional, Find find) {
    for (const JsonKey<Part>& row : part.rows) {
      JsonKey<T>& own = rows.emplace_back();
      own.text = row.text;
      own.text.is_optional |= is_optional;
      own.add = [find, &row](const T& of, nlohmann::ordered_json& out) {
        if (const auto found = find(of)) row.add(*found, out);
      };
      keys.push_back(own.text);
    }
  }
};

// The getters of keys that are absent without a value.
// Not of an empty text or list.
template <class T, class X>
auto filled(X T::*member) {
  return [member](const T& of) {
    return (of.*member).empty() ? std::nullopt : std::optional<X>(of.*member);
  };
}
template <class X>
std::optional<X> filled(X value) {
  return value.empty() ? std::nullopt : std::optional<X>(std::move(value));
}
// Not of -1.
template <class X>
std::optional<X> known(X value) {
  return value < 0 ? std::nullopt : std::optional<X>(value);
}
// Not of the others.
template <class If, class Get>
auto only_if(If holds, Get get) {
  return [holds, get](const auto& of) {
    using X = std::remove_cvref_t<std::invoke_result_t<Get, decltype(of)>>;
    return std::invoke(holds, of) ? std::optional<X>(std::invoke(get, of)) : std::nullopt;
  };
}
// The items of a list with what their getters need in addition.
template <class Row, class Context, class Items>
std::vector<Row> each(const Context& context, const Items& items) {
  std::vector<Row> out;
  for (const auto& item : items) out.push_back({context, item});
  return out;
}

// The first two keys of every file.
template <class T>
JsonKey<T> format_key(std::string name) {
  return {"format", [name](const T&) { return name; }, "always `" + name + "`", {name}};
}
template <class T>
JsonKey<T> version_key(int version) {
  return {"format_version",
          [version](const T&) { return version; },
          std::to_string(version) +
              ". It grows when a key changes its meaning or goes away; new keys do not change it",
          {version}};
}

// A row of the table of keys: `alarms[].lane`, "text", its meaning.
struct JsonKeyLine {
  std::string key, value, meaning;
};
// Named objects come last, each once: `PLACE.id`. Those in `elsewhere` are in another table.
std::vector<JsonKeyLine> json_key_lines(const JsonShape& shape,
                                        const std::vector<std::string>& elsewhere = {});

// A JSON Schema, draft 2020-12. Named objects are its $defs; with `other`, those of that file,
// whose own object is called `other_name`.
struct JsonSchemaText {
  std::string title, description;
  std::string other_file = {}, other_name = {};
};
std::string json_schema(const JsonShape& shape, const JsonSchemaText& text);

}  // namespace lockstep
