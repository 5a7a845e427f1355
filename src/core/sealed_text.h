// The checksum of a JSON file that one program writes whole: its first member, of the text of all
// the others. It finds damage and edits by hand; it protects from nobody.
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>

#include "src/core/text_hash.h"

namespace lockstep {

enum class Seal { kFits, kMissing, kBroken };  // kMissing: an earlier version wrote the file

// Requires: `json` is the text of an object that has members.
inline std::string sealed(std::string_view json) {
  const std::string_view members = json.substr(1);
  return fmt::format("{{\"checksum\": \"{:016x}\",{}", fnv1a(members), members);
}

inline Seal seal_of(std::string_view json) {
  constexpr std::string_view kStart = "{\"checksum\": \"";
  const size_t comma = json.find(',');
  if (!json.starts_with(kStart) || comma == json.npos) return Seal::kMissing;
  const std::string again = sealed(fmt::format("{{{}", json.substr(comma + 1)));
  return again == json ? Seal::kFits : Seal::kBroken;
}

}  // namespace lockstep
