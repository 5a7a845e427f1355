// Reads a Policy from TOML text, for parse_policy and presets(). A preset is read like any policy,
// except that its op lists may name ops that Lockstep does not have. Knows nothing of where texts
// come from.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "src/policy/policy.h"

namespace lockstep {

struct PolicyText {
  std::string_view toml;
  std::string file_name;  // for messages; its stem is the default name
  bool is_preset = false;
  // Finds the preset named by `extends`. Throws: InputError.
  std::function<Policy(const std::string&)> find_base;
};

// Throws: InputError with every problem and its line.
Policy read_policy(const PolicyText& source);

}  // namespace lockstep
