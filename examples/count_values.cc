// Task: which values remain of my data in a format, and how often does each occur?
// The scalar types are keys of std::unordered_map; 0 and -0 are one key.
#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>
#include <vector>

#include "emulation/number/number_fmt.h"

using lockstep::fp4_e2m1;

int main() {
  std::unordered_map<fp4_e2m1, int> counts;
  constexpr int kCount = 1000;
  for (int i = 0; i < kCount; ++i) {
    const double x = (kCount / 2 - i) / 250.0;  // 2 .. -2
    ++counts[fp4_e2m1(x * x * x)];
  }
  std::vector<std::pair<fp4_e2m1, int>> sorted(counts.begin(), counts.end());
  std::sort(sorted.begin(), sorted.end());
  for (const auto& [value, count] : sorted) fmt::print("{:>5} {:>4}\n", value, count);
  return sorted.size() == 15 ? 0 : 1;  // run as a test
}
