// See documented_keys.h.
#include "tests/reports/documented_keys.h"

#include <doctest/doctest.h>

#include "src/core/text.h"
#include "src/core/text_file.h"
#include "tests/support/folders.h"

namespace lockstep::testing {
namespace {

void add_keys(const nlohmann::json& json, const std::string& path,
              KeyName (*name_of)(const std::string&), std::set<std::string>& keys) {
  if (json.is_array()) {
    for (const auto& item : json) add_keys(item, path + "[]", name_of, keys);
  } else if (json.is_object()) {
    for (const auto& [key, value] : json.items()) {
      const KeyName name = name_of(path.empty() ? key : path + "." + key);
      if (!name.key.empty()) keys.insert(name.key);
      add_keys(value, name.below, name_of, keys);
    }
  }
}

}  // namespace

std::set<std::string> keys_of(const nlohmann::json& json, KeyName (*name_of)(const std::string&)) {
  std::set<std::string> keys;
  add_keys(json, "", name_of, keys);
  return keys;
}

std::set<std::string> documented_keys(const std::string& page) {
  const std::string start = "| `";
  std::set<std::string> keys;
  const std::string text = read_text_file(std::string(kSourceFolder) + "/docs/" + page);
  for (const std::string& line : split(text, '\n')) {
    if (!line.starts_with(start)) continue;
    keys.insert(line.substr(start.size(), line.find('`', start.size()) - start.size()));
  }
  return keys;
}

void check_same_keys(const std::set<std::string>& written,
                     const std::set<std::string>& documented) {
  CHECK(written.size() > 30);
  for (const std::string& key : written) {
    CAPTURE(key);
    CHECK(documented.contains(key));
  }
  for (const std::string& key : documented) {
    CAPTURE(key);
    CHECK(written.contains(key));
  }
}

}  // namespace lockstep::testing
