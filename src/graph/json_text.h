// JSON as text: a parser for text of unknown origin, and a writer with one row per line. Limits
// protect nlohmann's parser: its trees take up to twenty times the memory of their text, and
// copying or printing them recurses.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace lockstep {

inline constexpr size_t kMostJsonBytes = 64 << 20;  // a graph of 100 000 nodes has half as many
inline constexpr int kMostJsonDepth = 32;           // a graph needs 6

// Throws: InputError if the text is too long for JSON of unknown origin, or nested too deep.
void require_bounded_json(std::string_view text);

// Throws: InputError if the text is not JSON (with the byte of the error), too long, or nested too
// deep.
nlohmann::json parse_json(std::string_view text);

// Equal content with equal bits of every number; layout, digits and the order of keys may differ.
// Text that parse_json refuses equals only itself.
bool same_json(std::string_view a, std::string_view b);

// Every field of an object and every element of an array (also of an array in the object) takes
// one line. The text ends with a newline.
std::string json_lines(const nlohmann::ordered_json& json);

}  // namespace lockstep
