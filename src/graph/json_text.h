// What does a JSON text of unknown origin hold?
// nlohmann's parser behind limits: its trees cost up to twenty times their text, and copying or
// printing them recurses.
#pragma once

#include <nlohmann/json.hpp>
#include <string_view>

namespace lockstep {

inline constexpr size_t kMostJsonBytes = 64 << 20;  // a graph of 100 000 nodes has half of that
inline constexpr int kMostJsonDepth = 32;           // a graph's own is 6

// Throws: InputError: no JSON, with the byte where it ends to be; too long; nested too deep.
nlohmann::json parse_json(std::string_view text);

}  // namespace lockstep
