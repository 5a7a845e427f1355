// See escaped.h.
#include "tests/fuzz/escaped.h"

#include <fmt/format.h>

#include <charconv>

#include "src/core/text.h"

namespace lockstep::fuzz {
namespace {

constexpr std::string_view kDigits = "0123456789abcdef";

}  // namespace

std::string hex_of(std::string_view bytes) {
  std::string text;
  for (const char c : bytes) text += fmt::format("{:02x}", static_cast<unsigned char>(c));
  return text;
}

std::string bytes_of(std::string_view hex) {
  std::string bytes;
  for (size_t i = 0; i + 1 < hex.size(); i += 2) {
    const size_t high = kDigits.find(hex[i]), low = kDigits.find(hex[i + 1]);
    if (high == std::string_view::npos || low == std::string_view::npos) break;
    bytes += static_cast<char>(high * kDigits.size() + low);
  }
  return bytes;
}

std::string escaped(std::string_view bytes) {
  std::string out;
  for (const char c : bytes) {
    if (c >= ' ' && c <= '~' && c != '\\') {
      out += c;
    } else {
      out += "\\x" + hex_of({&c, 1});
    }
  }
  return out;
}

std::string unescaped(std::string_view text) {
  constexpr size_t kLength = 4;  // of \xHH
  std::string out;
  while (!text.empty()) {
    const std::string byte =
        text.starts_with("\\x") ? bytes_of(text.substr(2, kLength - 2)) : std::string();
    out += byte.empty() ? text.substr(0, 1) : std::string_view(byte);
    text.remove_prefix(byte.empty() ? 1 : kLength);
  }
  return out;
}

std::string joined_pieces(std::string_view lines) {
  std::string out;
  for (const std::string& line : split(lines, '\n')) {
    size_t count = 0;
    std::from_chars(line.data(), line.data() + line.size(), count);
    const size_t space = line.find(' ');
    if (space == std::string::npos) continue;
    const std::string text = unescaped(std::string_view(line).substr(space + 1));
    for (size_t i = 0; i < count; ++i) out += text;
  }
  return out;
}

}  // namespace lockstep::fuzz
