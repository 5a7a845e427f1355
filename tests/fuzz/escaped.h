// Any bytes as one line of plain ASCII, for inputs that people read: \xHH for what is not
// printable.
#pragma once

#include <string>
#include <string_view>

namespace lockstep::fuzz {

std::string escaped(std::string_view bytes);
std::string unescaped(std::string_view text);
// "616263" for "abc", and back; stops at the first character that is not a digit.
std::string hex_of(std::string_view bytes);
std::string bytes_of(std::string_view hex);

// A long input as pieces, one a line: "COUNT TEXT", the escaped text repeated. Corpus files whose
// names end in ".pieces" hold these.
std::string joined_pieces(std::string_view lines);

}  // namespace lockstep::fuzz
