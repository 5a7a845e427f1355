// Parses JSON text of unknown origin. Limits protect nlohmann's parser: its trees take up to twenty
// times the memory of their text, and copying or printing them recurses.
#pragma once

#include <nlohmann/json.hpp>
#include <string_view>

namespace lockstep {

inline constexpr size_t kMostJsonBytes = 64 << 20;  // a graph of 100 000 nodes has half as many
inline constexpr int kMostJsonDepth = 32;           // a graph needs 6

// Throws: InputError if the text is not JSON (with the byte of the error), too long, or nested too
// deep.
nlohmann::json parse_json(std::string_view text);

}  // namespace lockstep
