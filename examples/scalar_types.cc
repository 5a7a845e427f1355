// Task: I want to write my own loop in FP16 or BF16 and see where it stops being right.
// Sums 1 + 1/2 + 1/3 + ... until the sum no longer changes. The scalar types need only
// their header: this program is not linked with any part of Lockstep.
#include <iostream>

#include "emulation/number/number.h"

using namespace lockstep;

template <typename T>
constexpr int last_term_that_counts() {
  T sum(0);
  for (int n = 1;; ++n) {
    const T next = sum + T(1) / T(n);
    if (next == sum) return n - 1;
    sum = next;
  }
}

// Constant expressions where float has them.
static_assert(fp16(0.1) + fp16(0.2) < fp16(0.3));
static_assert(fp16::round(0.1, Rounding::kTowardZero) < fp16::round(0.1, Rounding::kUp));
static_assert(fma(fp16(300), fp16(300), fp16(-60000)) == fp16(30000));  // one rounding

int main() {
  std::cout << "1 + 1/2 + 1/3 + ... changes up to the term\n"
            << "  fp8_e4m3  1/" << last_term_that_counts<fp8_e4m3>() << '\n'
            << "  bf16      1/" << last_term_that_counts<bf16>() << '\n'
            << "  fp16      1/" << last_term_that_counts<fp16>() << '\n';
  using narrow = ieee<4, 7>;  // any field widths: 4 exponent bits, 7 fraction bits
  std::cout << "0.1 is " << fp16(0.1) << " in fp16, " << bf16(0.1) << " in bf16, " << narrow(0.1)
            << " in e4m7\n";
  using saturating = with_rule<fp8_e4m3, OverflowRule::kSaturate>;
  std::cout << "1000 is " << fp8_e4m3(1000) << " in fp8_e4m3, " << saturating(1000)
            << " where it saturates\n";
  return last_term_that_counts<fp16>() == 512 ? 0 : 1;  // run as a test
}
