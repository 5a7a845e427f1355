// The names of twin lanes: "twin", "twin2", "twin3", ... Each is FP32 from weights moved by one
// ulp, every one by signs of its own.
#pragma once

#include <charconv>
#include <string>
#include <string_view>

#include "src/policy/policy.h"

namespace lockstep {

inline constexpr int kMostTwins = 99;

// "twin" for 1, "twin7" for 7. Requires: number >= 1.
inline std::string twin_name(int number) {
  const std::string name(kTwinLane);
  return number == 1 ? name : name + std::to_string(number);
}

// The inverse of twin_name; 0 for a name that is not a twin's.
inline int twin_number(std::string_view name) {
  if (!name.starts_with(kTwinLane)) return 0;
  const std::string_view digits = name.substr(kTwinLane.size());
  int number = digits.empty() ? 1 : 0;
  std::from_chars(digits.data(), digits.data() + digits.size(), number);
  return number >= 1 && number <= kMostTwins && twin_name(number) == name ? number : 0;
}

}  // namespace lockstep
