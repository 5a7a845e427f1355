// Two functions that Debian 12's glibc offers in versions that glibc 2.34 lacks; the linker's
// --wrap sends every call here, those of libstdc++ included.
#include <unistd.h>

#include <cstdint>
#include <cstdlib>

extern "C" {

// hypot got a second version in glibc 2.35, which no longer sets errno. The first computes the same
// bits.
double hypot_with_errno(double x, double y);
__asm__(".symver hypot_with_errno, hypot@GLIBC_2.2.5");
double __wrap_hypot(double x, double y) {
  return hypot_with_errno(x, y);
}

// std::random_device's source of numbers, since glibc 2.36.
std::uint32_t __wrap_arc4random() {
  std::uint32_t number = 0;
  if (getentropy(&number, sizeof number) != 0) std::abort();
  return number;
}
}
