// Globs, splitting and joining, escaping.
#include "src/core/text.h"

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <utility>

#include "src/core/utf8.h"

namespace lockstep {
namespace {

// Terminal controls (C0, DEL, C1), line ends, and characters that change the writing direction.
bool controls(char32_t c) {
  constexpr std::pair<char32_t, char32_t> kRanges[] = {
      {0, 0x1f}, {0x7f, 0x9f}, {0x200e, 0x200f}, {0x2028, 0x202e}, {0x2066, 0x2069}};
  return std::ranges::any_of(kRanges, [c](const auto& r) { return c >= r.first && c <= r.second; });
}

}  // namespace

bool glob_match(std::string_view pattern, std::string_view text) {
  // On a mismatch the last '*' takes one more character; earlier ones never need to be revisited.
  constexpr size_t kNone = std::string_view::npos;
  size_t p = 0, t = 0, star = kNone, star_text = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      star_text = t;
    } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == text[t])) {
      ++p;
      ++t;
    } else if (star != kNone) {
      p = star + 1;
      t = ++star_text;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  size_t begin = 0;
  for (size_t end; (end = text.find(separator, begin)) != std::string_view::npos; begin = end + 1) {
    parts.emplace_back(text.substr(begin, end - begin));
  }
  parts.emplace_back(text.substr(begin));
  return parts;
}

std::string join(const std::vector<std::string>& parts, std::string_view separator) {
  std::string text;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (i > 0) text += separator;
    text += parts[i];
  }
  return text;
}

std::string with_thousands(unsigned long long value) {
  std::string text = std::to_string(value);
  for (size_t i = text.size(); i > 3; i -= 3) text.insert(i - 3, 1, ' ');
  return text;
}

std::string printable(std::string_view text, size_t most) {
  std::string out;
  const auto escape = [&](const char* form, unsigned number) {
    char code[16];
    std::snprintf(code, sizeof code, form, number);
    out += code;
  };
  while (!text.empty()) {
    if (out.size() >= most) return out + "...";
    char32_t character = 0;
    const size_t taken = decode_utf8(text, character);
    if (taken == 0) {
      escape("\\x%02x", static_cast<unsigned char>(text[0]));
    } else if (controls(character)) {
      escape("\\u%04x", static_cast<unsigned>(character));
    } else {
      out += text.substr(0, taken);
    }
    text.remove_prefix(std::max<size_t>(taken, 1));
  }
  return out;
}

std::string printable_lines(std::string_view text) {
  std::string out;
  for (size_t begin = 0;;) {
    const size_t end = text.find('\n', begin);
    out += printable(text.substr(begin, end - begin));
    if (end == std::string_view::npos) return out;
    out += '\n';
    begin = end + 1;
  }
}

namespace {

// Every byte outside of printable ASCII as \NNN: no locale changes what is read back.
std::string dollar_quoted(std::string_view argument) {
  std::string out = "$'";
  for (const char c : argument) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '\'' || c == '\\') {
      out += '\\';
      out += c;
    } else if (byte >= 0x20 && byte < 0x7f) {
      out += c;
    } else {
      char code[8];
      // Octal, because a hexadecimal digit that follows would belong to \x in some shells.
      std::snprintf(code, sizeof code, "\\%03o", byte);
      out += code;
    }
  }
  return out + "'";
}

}  // namespace

std::string shell_quoted(const std::string& argument) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_=+./:,@%^";
  if (!argument.empty() && argument.find_first_not_of(kPlain) == std::string::npos) return argument;
  if (printable(argument) != argument) return dollar_quoted(argument);
  std::string out = "'";
  for (const char c : argument) {
    if (c == '\'') {
      out += "'\\''";
    } else {
      out += c;
    }
  }
  return out + "'";
}

std::string shell_path(const std::string& path) {
  return shell_quoted(path.starts_with('-') ? "./" + path : path);
}

}  // namespace lockstep
