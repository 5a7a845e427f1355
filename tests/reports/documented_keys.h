// The keys of a JSON object, and those that a page of docs/ has a row for.
#pragma once

#include <nlohmann/json.hpp>
#include <set>
#include <string>

namespace lockstep::testing {

// How the page writes the key at `path` ("lanes[].name").
struct KeyName {
  std::string key;    // empty: a name that is not a key of its own
  std::string below;  // replaces `path` in the keys of its value
};
std::set<std::string> keys_of(const nlohmann::json& json, KeyName (*name_of)(const std::string&));
// The first cells of the tables' rows in docs/PAGE.
std::set<std::string> documented_keys(const std::string& page);
// Every key of one is in the other.
void check_same_keys(const std::set<std::string>& written, const std::set<std::string>& documented);

}  // namespace lockstep::testing
