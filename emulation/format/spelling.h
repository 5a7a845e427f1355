// The spelling rule that names of formats and of block formats share. Knows no table.
#pragma once

#include <cctype>
#include <string>
#include <string_view>

namespace lockstep {

// In lower case, with each '-' replaced by '_'.
inline std::string canonical_spelling(std::string_view name) {
  std::string out(name);
  for (char& c : out) c = c == '-' ? '_' : static_cast<char>(std::tolower((unsigned char)c));
  return out;
}

}  // namespace lockstep
