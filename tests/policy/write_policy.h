// Policy files for tests.
#pragma once

#include <fstream>
#include <string>

#include "tests/support/folders.h"

namespace lockstep {

// Returns the path of a file in the build folder.
inline std::string write_policy(const std::string& name, const std::string& toml) {
  const std::string path = std::string(testing::kBinaryFolder) + "/test_lockstep_" + name + ".toml";
  std::ofstream(path) << "name = \"" << name << "\"\nversion = \"1\"\n" << toml;
  return path;
}

}  // namespace lockstep
