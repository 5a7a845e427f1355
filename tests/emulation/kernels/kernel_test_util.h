// Shared by the kernel tests: seeded arrays of several kinds, bit comparison, and the sets to
// compare.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "emulation/format/rounding.h"
#include "emulation/kernels/kernel_set.h"
#include "src/core/parallel.h"
#include "src/core/random.h"

namespace lockstep {

// kSmall: around 1.  kWide: over 40 binades, subnormals of FP16 included.  kCancelling: +-1 with a
// few last bits, so that sums come close to zero.  kSpecial: kWide with 0, infinities and NaN.
// kLarge: near FP16's largest numbers.  kTiny: products below float's normal range.
// kHuge: positive, sums of products beyond float's largest number.
enum class DataKind { kSmall, kWide, kCancelling, kSpecial, kLarge, kTiny, kHuge };
inline constexpr DataKind kAllData[] = {DataKind::kSmall,   DataKind::kWide,  DataKind::kCancelling,
                                        DataKind::kSpecial, DataKind::kLarge, DataKind::kTiny,
                                        DataKind::kHuge};

// Values of `format`; the same arguments always give the same values.
template <typename T>
std::vector<T> make_data(size_t count, DataKind kind, const Format& format, uint32_t index) {
  const RandomStream random(20, RandomPurpose::kTest, index);
  std::vector<T> values(count);
  for (size_t i = 0; i < count; ++i) {
    const double u = 2 * random.uniform(2 * i) - 1;
    const int b = static_cast<int>(random.bits(2 * i + 1) & 0x3ff);
    double x = u;
    if (kind == DataKind::kWide || kind == DataKind::kSpecial) x = std::ldexp(u, b % 40 - 28);
    if (kind == DataKind::kCancelling) x = std::copysign(1 + (b & 7) * 0x1p-10, u);
    if (kind == DataKind::kLarge) x = std::ldexp(u, b % 18);
    if (kind == DataKind::kTiny) x = std::ldexp(u, -60 - b % 40);
    if (kind == DataKind::kHuge) x = std::ldexp(1 + std::fabs(u) / 2, 62);
    if (kind == DataKind::kSpecial && b < 24) {
      constexpr double kInfinity = std::numeric_limits<double>::infinity();
      const double special[] = {0.0, -0.0, kInfinity, -kInfinity, std::nan("")};
      x = special[b < 16 ? b % 2 : b % 5];
    }
    values[i] = static_cast<T>(round_to_format(x, format, Rounding::kNearestEven));
  }
  return values;
}

template <typename T>
bool same_bits(const std::vector<T>& x, const std::vector<T>& y) {
  return x.size() == y.size() && std::memcmp(x.data(), y.data(), x.size() * sizeof(T)) == 0;
}

// Restores the number of threads when a test ends.
class ThreadCountGuard {
 public:
  explicit ThreadCountGuard(int count) : before_(thread_count()) { set_thread_count(count); }
  ~ThreadCountGuard() { set_thread_count(before_); }

 private:
  int before_;
};

}  // namespace lockstep
