#include "src/record/run/options_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <type_traits>

#include "src/core/error.h"
#include "src/core/text.h"
#include "src/graph/json_text.h"
#include "src/train/run_option_rows.h"
#include "src/train/run_option_text.h"
#include "src/update/optimizers.h"

namespace lockstep {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kInfinity[] = "inf";  // JSON has no such number

// The rows with a key, in the order of the JSON.
const std::vector<const RunOption*>& rows_in_json() {
  static const std::vector<const RunOption*> rows = [] {
    std::vector<const RunOption*> found;
    for (const RunOption& row : run_options()) {
      if (!row.key.empty()) found.push_back(&row);
    }
    std::ranges::sort(found, {}, &RunOption::place);
    return found;
  }();
  return rows;
}

// Every number of the row, given or not, because defaults may change.
Json choice_to_json(const HyperChoice& choice, std::span<const HyperParameter> parameters) {
  Json j = {{"name", choice.name}};
  const HyperNumbers numbers(parameters, choice.values);
  for (const HyperParameter& p : parameters) j[std::string(p.name)] = numbers[p.name];
  return j;
}

std::string shown(const Json& j) {
  constexpr size_t kMost = 40;
  return printable(j.dump(-1, ' ', false, Json::error_handler_t::replace), kMost);
}

template <typename T>
constexpr std::string_view kWanted = std::is_same_v<T, bool>       ? "true or false"
                                     : std::is_integral_v<T>       ? "an integer in its range"
                                     : std::is_floating_point_v<T> ? "a number"
                                                                   : "a text";

// Whether the value has the type, so that reading it changes nothing.
template <typename T>
bool holds(const Json& j) {
  if constexpr (std::is_same_v<T, bool>) return j.is_boolean();
  if constexpr (std::is_same_v<T, std::string>) return j.is_string();
  if constexpr (std::is_same_v<T, double>) return j.is_number();
  if constexpr (std::is_same_v<T, uint64_t>) return j.is_number_unsigned();
  if constexpr (std::is_same_v<T, int64_t>) {
    return j.is_number_integer() && (!j.is_number_unsigned() || j.get<uint64_t>() <= INT64_MAX);
  }
  return false;
}

template <typename T>
T value_of(const Json& j, std::string_view name) {
  if (holds<T>(j)) return j.get<T>();
  throw InputError(fmt::format("options: '{}' must be {}, is {}", name, kWanted<T>, shown(j)));
}
template <typename T>
T field(const Json& object, const char* key) {
  const auto found = object.find(key);  // end() where this is no object
  if (found == object.end()) throw InputError(fmt::format("options: '{}' is missing", key));
  return value_of<T>(*found, key);
}

// Numbers that the row lacks are left out: files of version 1 held those of every optimizer.
HyperChoice choice_from_json(const Json& j, const RunOption& row) {
  HyperChoice choice{field<std::string>(j, "name"), {}};
  for (const HyperParameter& p : row.numbers(choice.name)) {
    const std::string name(p.name);
    if (j.contains(name)) choice.values[name] = field<double>(j, name.c_str());
  }
  return choice;
}

const Json& object_at(const Json& j, std::string_view key) {
  if (j.is_object()) return j;
  throw InputError(fmt::format("options: '{}' must be an object", key));
}
const Json& list_at(const Json& j, std::string_view key) {
  if (j.is_array()) return j;
  throw InputError(fmt::format("options: '{}' must be a list", key));
}

// Each type of value as JSON.
struct Writer {
  const RunOption& row;
  const RunOptions& options;

  Json operator()(std::monostate) const { return {}; }
  Json operator()(const ChosenWord& word) const { return row.words[word.index(options)]; }
  template <typename T>
  Json operator()(const OptionMember<T>& member) const {
    return json(member.of(options));
  }
  template <typename T>
  Json json(const T& value) const {
    return value;
  }
  Json json(double value) const { return std::isinf(value) ? Json(kInfinity) : Json(value); }
  Json json(const std::optional<double>& value) const {
    return value ? Json(*value) : Json(row.none);
  }
  Json json(const std::vector<std::string>& value) const {
    return row.is_list ? Json(value) : Json(join(value, ","));
  }
  Json json(const HyperValues& value) const { return hyper_values_text(value); }
  Json json(const HyperChoice& value) const {
    return choice_to_json(value, row.numbers(value.name));
  }
  Json json(const std::vector<ParameterGroup>& value) const {
    Json groups = Json::array();
    for (const ParameterGroup& group : value) {
      const OptimizerSpec& spec = group.optimizer;
      groups.push_back({{"layers", group.layers},
                        {"optimizer", choice_to_json(spec, find_optimizer(spec.name).parameters)}});
    }
    return groups;
  }
};

struct Reader {
  const RunOption& row;
  const Json& j;
  RunOptions& options;

  void operator()(std::monostate) const {}
  void operator()(const ChosenWord& word) const {
    const auto name = value_of<std::string>(j, row.key);
    const std::vector<std::string> words(row.words.begin(), row.words.end());
    word.choose(options, known_word(fmt::format("options: {}", row.key), name, words));
  }
  template <typename T>
  void operator()(const OptionMember<T>& member) const {
    read(member.in(options));
  }
  template <typename T>
  void read(T& value) const {
    value = value_of<T>(j, row.key);
  }
  void read(double& value) const {
    value = j == kInfinity ? std::numeric_limits<double>::infinity() : value_of<double>(j, row.key);
  }
  void read(std::optional<double>& value) const {
    if (j != row.none) value = value_of<double>(j, row.key);
  }
  void read(std::vector<std::string>& value) const {
    value.clear();
    if (row.is_list) {
      for (const Json& one : list_at(j, row.key)) {
        value.push_back(value_of<std::string>(one, row.key));
      }
    } else if (const auto text = value_of<std::string>(j, row.key); !text.empty()) {
      value = split(text, ',');
    }
  }
  void read(std::vector<int64_t>& value) const {
    for (const Json& one : list_at(j, row.key)) {
      value.push_back(value_of<int64_t>(one, row.key));
      if (value.back() >= 0) continue;
      throw InputError(fmt::format("options: {} is {}, must be at least 0", row.key, value.back()));
    }
  }
  void read(std::map<std::string, double>& value) const {
    for (const auto& [name, number] : object_at(j, row.key).items()) {
      value[name] = value_of<double>(number, row.key);
    }
  }
  void read(HyperValues& value) const {
    value = parse_hyper_values(row.key, value_of<std::string>(j, row.key));
  }
  void read(HyperChoice& value) const { value = choice_from_json(object_at(j, row.key), row); }
  void read(std::vector<ParameterGroup>& value) const {
    const RunOption& optimizer = option_at(options, &options.optimizer);
    for (const Json& group : list_at(j, row.key)) {
      const auto found = object_at(group, row.key).find("optimizer");
      if (found == group.end()) throw InputError("options: 'optimizer' is missing");
      value.push_back({field<std::string>(group, "layers"),
                       choice_from_json(object_at(*found, "optimizer"), optimizer)});
    }
  }
};

void read_option(const RunOption& row, const Json& object, RunOptions& options) {
  const auto found = object.find(std::string(row.key));
  if (found != object.end()) {
    std::visit(Reader{row, *found, options}, row.member);
  } else if (row.is_required) {
    throw InputError(fmt::format("options: '{}' is missing", row.key));
  } else if (row.older) {
    std::get<OptionMember<int64_t>>(row.member).in(options) = *row.older;
  }
  // What every reader relies on; a run's start checks the rest.
  const auto* count = std::get_if<OptionMember<int64_t>>(&row.member);
  if (count == nullptr || count->of(options) >= static_cast<int64_t>(row.low)) return;
  throw InputError(
      fmt::format("options: {} is {}, must be at least {}", row.key, count->of(options), row.low));
}

Json to_object(const RunOptions& options) {
  static const RunOptions defaults;
  Json object;
  for (const RunOption* row : rows_in_json()) {
    if (row->only_if_set && option_text(*row, options) == option_text(*row, defaults)) continue;
    object[std::string(row->key)] = std::visit(Writer{*row, options}, row->member);
  }
  return object;
}

}  // namespace

std::string options_to_json(const RunOptions& options) {
  try {
    return to_object(options).dump();
  } catch (const Json::exception&) {
    throw InputError("options: a name is not UTF-8, as JSON must be",
                     "rename the model, data or policy file");
  }
}

RunOptions options_from_json(std::string_view json) {
  Json j;
  try {
    j = Json(parse_json(json));
  } catch (const InputError& error) {
    throw InputError(std::string("options: ") + error.what());
  }
  if (!j.is_object()) throw InputError("options: must be an object");
  RunOptions options;
  for (const RunOption* row : rows_in_json()) read_option(*row, j, options);
  return options;
}

std::vector<std::string> option_differences(const RunOptions& file, const RunOptions& now) {
  const Json before = to_object(file).flatten(), after = to_object(now).flatten();
  std::vector<std::string> differences;
  const auto compare = [&](const std::string& key) {
    const std::string x = before.contains(key) ? before[key].dump() : "nothing";
    const std::string y = after.contains(key) ? after[key].dump() : "nothing";
    // "/optimizer/lr" -> "optimizer/lr"
    if (x != y) differences.push_back(key.substr(1) + ": " + x + " in the file, " + y + " now");
  };
  for (const auto& [key, value] : before.items()) compare(key);
  for (const auto& [key, value] : after.items()) {
    if (!before.contains(key)) compare(key);
  }
  return differences;
}

}  // namespace lockstep
