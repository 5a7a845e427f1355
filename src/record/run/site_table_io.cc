#include "src/record/run/site_table_io.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>

#include "src/core/error.h"
#include "src/core/text.h"
#include "src/graph/infer.h"
#include "src/graph/json_text.h"
#include "src/record/hdf5/hdf5_handle.h"
#include "src/record/run/run_file_names.h"

namespace lockstep {
namespace {

template <typename T>
std::string list_text(const std::vector<T>& values) {
  return fmt::format("[{}]", fmt::join(values, ","));
}

// "[3,4]" -> 3, 4. Throws: InputError unless all are whole numbers in [0, most].
std::vector<int64_t> whole_numbers(const std::string& text, int64_t most) {
  std::vector<int64_t> found;
  const nlohmann::json list = parse_json(text);
  if (!list.is_array()) throw InputError("'" + text + "' must be a list");
  for (const nlohmann::json& item : list) {
    if (!item.is_number_unsigned() || item.get<uint64_t>() > static_cast<uint64_t>(most)) {
      throw InputError(fmt::format("'{}' must have whole numbers in [0, {}]", text, most));
    }
    found.push_back(item.get<int64_t>());
  }
  return found;
}

}  // namespace

void write_sites(hid_t root, const SiteTable& table) {
  const hdf5::Handle group = hdf5::create_group(root, run_names::kSites);
  const auto column = [&](const char* name, auto value_of) {
    std::vector<decltype(value_of(Site{}))> values;
    for (const Site& site : table.sites) values.push_back(value_of(site));
    if constexpr (std::is_same_v<typename decltype(values)::value_type, std::string>) {
      hdf5::write_texts(group.id(), name, values);
    } else {
      hdf5::write_column(group.id(), name, values);
    }
  };
  column("id", [](const Site& s) { return s.id; });
  column("layer", [](const Site& s) { return s.layer; });
  column("role", [](const Site& s) { return std::string(to_string(s.role)); });
  column("op", [](const Site& s) { return s.op; });
  column("point", [](const Site& s) { return std::string(to_string(s.point)); });
  column("shape", [](const Site& s) { return list_text(s.shape); });
  column("count", [](const Site& s) { return static_cast<uint64_t>(element_count(s.shape)); });
  column("order", [](const Site& s) { return s.id; });
  column("feeds", [](const Site& s) { return list_text(s.feeds); });
  column("source_line", [](const Site& s) { return s.source_line; });
  column("torch_op", [](const Site& s) { return s.torch_op; });
  column("node", [](const Site& s) { return s.node; });
  column("index", [](const Site& s) { return static_cast<int32_t>(s.index); });
  column("value", [](const Site& s) { return s.value; });
  column("scaled", [](const Site& s) { return static_cast<uint8_t>(s.scaled); });
  column("stat_exempt", [](const Site& s) { return static_cast<uint8_t>(s.stat_exempt); });
}

SiteTable read_sites(const StoredFields& group) {
  SiteTable table;
  const std::vector<uint64_t> ids = group.child("id").take_whole();
  for (const uint64_t id : ids) {
    if (id != table.sites.size()) {
      group.problem(
          fmt::format("row {} has id {}, must have its row's number", table.sites.size(), id));
      return {};
    }
    Site site = {};
    site.id = static_cast<int32_t>(id);
    table.sites.push_back(site);
  }
  const auto take = [&](const StoredFields& column, const auto& values, auto store) {
    if (values.size() != table.sites.size()) {
      if (column.there()) {
        column.problem(fmt::format("has {} rows, must have {}", values.size(), table.sites.size()));
      }
      return;
    }
    size_t bad = 0;
    std::string first;
    for (size_t i = 0; i < values.size(); ++i) {
      try {
        store(table.sites[i], values[i]);
      } catch (const InputError& error) {
        if (bad++ == 0) first = fmt::format("row {}: {}", i, error.what());
      }
    }
    if (bad > 0) column.problem(first);
  };
  using Text = const std::string&;
  const auto texts = [&](const char* name, auto store) {
    const StoredFields column = group.child(name);
    take(column, column.take_texts(), [&](Site& site, Text text) {
      if (!is_stored_text(text, TextRule::kPrintable)) {
        throw InputError("'" + printable(text) + "' has control characters");
      }
      store(site, text);
    });
  };
  const auto whole = [&](const char* name, auto store) {
    const StoredFields column = group.child(name);
    take(column, column.take_whole(), store);
  };
  texts("layer", [](Site& s, Text x) { s.layer = x; });
  texts("role", [](Site& s, Text x) { s.role = find_role(x); });
  texts("op", [](Site& s, Text x) { s.op = x; });
  texts("point", [](Site& s, Text x) { s.point = find_point(x); });
  texts("shape", [](Site& s, Text x) {
    double count = 1;
    for (const int64_t extent : whole_numbers(x, kMostExtent)) {
      s.shape.push_back(extent);
      count *= static_cast<double>(extent);
    }
    constexpr double kMostElements = 0x1p53;
    if (count > kMostElements) throw InputError("shape " + x + " has more than 2^53 elements");
  });
  // Only earlier sites, so that a walk along them ends.
  texts("feeds", [&](Site& s, Text x) {
    for (const int64_t id : whole_numbers(x, s.id)) {
      if (id == s.id) throw InputError(fmt::format("site {} feeds itself", id));
      s.feeds.push_back(static_cast<int32_t>(id));
    }
  });
  texts("source_line", [](Site& s, Text x) { s.source_line = x; });
  if (group.has("torch_op")) {  // absent in older files
    texts("torch_op", [](Site& s, Text x) { s.torch_op = x; });
  }
  texts("node", [](Site& s, Text x) { s.node = x; });
  texts("value", [](Site& s, Text x) { s.value = x; });
  whole("index", [](Site& s, uint64_t x) {
    if (x > INT32_MAX) throw InputError(fmt::format("{}, must be an int32", x));
    s.index = static_cast<int>(x);
  });
  whole("scaled", [](Site& s, uint64_t x) { s.scaled = x != 0; });
  if (group.has("stat_exempt")) {  // since version 3
    whole("stat_exempt", [](Site& s, uint64_t x) { s.stat_exempt = x != 0; });
  }
  return table;
}

}  // namespace lockstep
