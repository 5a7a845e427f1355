// TOML as text: a parser for text of unknown origin, and a writer. Limits protect toml++'s parser
// and the destructors of its tables, which recurse over the parts of a key and nested values.
#pragma once

#include <toml++/toml.h>
#include <string>
#include <string_view>

namespace lockstep {

inline constexpr size_t kMostTomlBytes = size_t{1} << 20;  // a rule for each of 10 000 layers
inline constexpr int kMostTomlDepth = 32;                  // a policy needs 3

// `who` begins every message, "policy 'a.toml'"; `hint` ends those about TOML itself.
// Throws: InputError with the line if the text is not TOML, too long, or nested too deep.
toml::table parse_toml(std::string_view text, const std::string& who, const std::string& hint = "");

// Writes a table. Keys come in alphabetic order, strings in double quotes; the text ends with a
// newline. Comments are the caller's, as lines between tables.
std::string toml_text(const toml::table& table);

}  // namespace lockstep
