// Task: what are the limits of every format, as my generic code would see them?
// std::numeric_limits of the scalar types, printed with {fmt}.
#include <fmt/format.h>

#include <limits>

#include "emulation/number/number_fmt.h"

using namespace lockstep;

template <typename T>
void print(const char* name) {
  using L = std::numeric_limits<T>;
  fmt::print("{:<13}{:>3}{:>12.5g}{:>11.4g}{:>11.4g}{:>11.4g}  {}\n", name, L::digits, L::max(),
             L::min(), L::denorm_min(), L::epsilon(),
             L::has_infinity    ? "infinity, NaN"
             : L::has_quiet_NaN ? "NaN"
                                : "-");
}

int main() {
  fmt::print("{:<13}{:>3}{:>12}{:>11}{:>11}{:>11}  {}\n", "type", "p", "max", "min normal", "least",
             "epsilon", "specials");
  print<tf32>("tf32");
  print<fp16>("fp16");
  print<bf16>("bf16");
  print<fp8_e4m3>("fp8_e4m3");
  print<fp8_e5m2>("fp8_e5m2");
  print<fp8_e4m3fnuz>("fp8_e4m3fnuz");
  print<fp8_e5m2fnuz>("fp8_e5m2fnuz");
  print<fp6_e3m2>("fp6_e3m2");
  print<fp6_e2m3>("fp6_e2m3");
  print<fp4_e2m1>("fp4_e2m1");
  print<ieee<6, 9>>("ieee<6, 9>");
  return std::numeric_limits<fp8_e4m3>::max() == fp8_e4m3(448) ? 0 : 1;  // run as a test
}
