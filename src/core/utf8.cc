#include "src/core/utf8.h"

#include <iterator>

namespace lockstep {

constexpr unsigned kTrailBits = 6;  // payload of a byte 10xxxxxx

// 0xxxxxxx, 110xxxxx 10xxxxxx, ...
size_t decode_utf8(std::string_view text, char32_t& character) {
  constexpr struct {
    unsigned char mask, lead;
    char32_t least;
  } kForms[] = {{0x80, 0x00, 0}, {0xe0, 0xc0, 0x80}, {0xf0, 0xe0, 0x800}, {0xf8, 0xf0, 0x10000}};
  const auto first = static_cast<unsigned char>(text[0]);
  for (size_t trail = 0; trail < std::size(kForms); ++trail) {
    const auto& form = kForms[trail];
    if ((first & form.mask) != form.lead) continue;
    if (trail >= text.size()) return 0;
    character = first & static_cast<unsigned char>(~form.mask);
    for (size_t i = 1; i <= trail; ++i) {
      const auto byte = static_cast<unsigned char>(text[i]);
      if ((byte & 0xc0) != 0x80) return 0;
      character = character << kTrailBits | (byte & 0x3f);
    }
    const bool is_surrogate = character >= 0xd800 && character <= 0xdfff;
    return character < form.least || is_surrogate || character > 0x10ffff ? 0 : trail + 1;
  }
  return 0;
}

bool is_utf8(std::string_view text) {
  char32_t character = 0;
  for (size_t taken = 0; !text.empty(); text.remove_prefix(taken)) {
    taken = decode_utf8(text, character);
    if (taken == 0) return false;
  }
  return true;
}

}  // namespace lockstep
