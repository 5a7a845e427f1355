#include "src/record/run/layout.h"

#include <fmt/format.h>

namespace lockstep::layout {

std::string escape(std::string_view name) {
  if (name == ".") return "%2E";
  std::string out;
  for (const char c : name) {
    if (c == '%') {
      out += "%25";
    } else if (c == '/') {
      out += "%2F";
    } else {
      out += c;
    }
  }
  return out;
}

std::string unescape(std::string_view component) {
  std::string out;
  for (size_t i = 0; i < component.size(); ++i) {
    const std::string_view code = component.substr(i, 3);
    if (code == "%25") out += '%';
    if (code == "%2F") out += '/';
    if (code == "%2E") out += '.';
    if (component[i] == '%') {
      i += 2;
    } else {
      out += component[i];
    }
  }
  return out;
}

std::string hex(uint64_t value) {
  return fmt::format("{:016x}", value);
}

std::string text_hash(std::string_view text) {
  constexpr uint64_t kOffset = 0xcbf29ce484222325, kPrime = 0x100000001b3;
  uint64_t hash = kOffset;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * kPrime;
  return hex(hash);
}

}  // namespace lockstep::layout
