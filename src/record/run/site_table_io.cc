#include "src/record/run/site_table_io.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>

#include "src/record/hdf5/hdf5_handle.h"
#include "src/record/run/run_file_names.h"

namespace lockstep {
namespace {

template <typename T>
std::string list_text(const std::vector<T>& values) {
  return fmt::format("[{}]", fmt::join(values, ","));
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

SiteTable read_sites(hid_t root) {
  const hdf5::Handle group = hdf5::open_group(root, run_names::kSites);
  SiteTable table;
  for (const int32_t id : hdf5::read_column<int32_t>(group.id(), "id")) {
    Site site = {};
    site.id = id;
    table.sites.push_back(site);
  }
  const auto take = [&](const auto& values, const char* name, auto store) {
    if (values.size() != table.sites.size()) {
      throw hdf5::Error(fmt::format("cannot read sites/{}: {} rows, {} expected", name,
                                    values.size(), table.sites.size()));
    }
    for (size_t i = 0; i < values.size(); ++i) store(table.sites[i], values[i]);
  };
  const auto texts = [&](const char* name, auto store) {
    take(hdf5::read_texts(group.id(), name), name, store);
  };
  using Text = const std::string&;
  texts("layer", [](Site& s, Text x) { s.layer = x; });
  texts("role", [](Site& s, Text x) { s.role = find_role(x); });
  texts("op", [](Site& s, Text x) { s.op = x; });
  texts("point", [](Site& s, Text x) { s.point = find_point(x); });
  texts("shape", [](Site& s, Text x) { s.shape = nlohmann::json::parse(x).get<Shape>(); });
  texts("feeds",
        [](Site& s, Text x) { s.feeds = nlohmann::json::parse(x).get<std::vector<int32_t>>(); });
  texts("source_line", [](Site& s, Text x) { s.source_line = x; });
  if (hdf5::has_link(group.id(), "torch_op")) {  // absent in older files
    texts("torch_op", [](Site& s, Text x) { s.torch_op = x; });
  }
  texts("node", [](Site& s, Text x) { s.node = x; });
  texts("value", [](Site& s, Text x) { s.value = x; });
  take(hdf5::read_column<int32_t>(group.id(), "index"), "index",
       [](Site& s, int32_t x) { s.index = x; });
  take(hdf5::read_column<uint8_t>(group.id(), "scaled"), "scaled",
       [](Site& s, uint8_t x) { s.scaled = x != 0; });
  if (hdf5::has_link(group.id(), "stat_exempt")) {  // since version 3
    take(hdf5::read_column<uint8_t>(group.id(), "stat_exempt"), "stat_exempt",
         [](Site& s, uint8_t x) { s.stat_exempt = x != 0; });
  }
  return table;
}

}  // namespace lockstep
