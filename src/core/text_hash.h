// A 64-bit hash of a text, for identity and not for security: FNV-1a (Fowler, Noll, Vo).
#pragma once

#include <cstdint>
#include <string_view>

namespace lockstep {

// `start` is mixed in before the text: different starts give different hashes of one text.
constexpr uint64_t fnv1a(std::string_view text, uint64_t start = 0) {
  constexpr uint64_t kOffsetBasis = 0xcbf29ce484222325, kPrime = 0x100000001b3;
  uint64_t hash = kOffsetBasis ^ start;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * kPrime;
  return hash;
}

}  // namespace lockstep
