// UTF-8 by RFC 3629: the shortest forms, no surrogates, at most U+10FFFF.
#pragma once

#include <cstddef>
#include <string_view>

namespace lockstep {

// Decodes the first character. Requires: text is not empty. Returns: the bytes it takes; 0 if it is
// not UTF-8.
size_t decode_utf8(std::string_view text, char32_t& character);

bool is_utf8(std::string_view text);

}  // namespace lockstep
