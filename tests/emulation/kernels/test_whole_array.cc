// The largest number of an array and whether all are finite: every instruction set against plain
// comparisons of numbers, with what is looked for at any position.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "emulation/kernels/active_kernels.h"
#include "tests/emulation/kernels/kernel_test_util.h"

namespace lockstep {
namespace {

// Ends inside and after whole vectors, and over several ranges that threads share.
constexpr int64_t kSizes[] = {0, 1, 3, 15, 16, 17, 31, 63, 64, 65, 127, 200, 16384, 40003};

template <typename T>
struct Numbers {
  static constexpr T kInf = std::numeric_limits<T>::infinity();
  static constexpr T kNan = std::numeric_limits<T>::quiet_NaN();
  static constexpr T kLargest = std::numeric_limits<T>::max();
  static constexpr T kLeast = std::numeric_limits<T>::denorm_min();
};

template <typename T>
T want_abs_max(const std::vector<T>& x, bool infinities) {
  T largest = 0;
  for (const T each : x) {
    if (std::isnan(each) || (std::isinf(each) && !infinities)) continue;
    largest = std::max(largest, std::fabs(each));
  }
  return largest;
}

template <typename T>
void check_all(const KernelSet& set, const std::vector<T>& x) {
  const auto count = static_cast<int64_t>(x.size());
  const Kernels<T>& kernels = set.of<T>();
  CHECK(kernels.abs_max(x.data(), count) == want_abs_max(x, true));
  CHECK(kernels.finite_abs_max(x.data(), count) == want_abs_max(x, false));
  CHECK(kernels.all_finite(x.data(), count) ==
        std::ranges::all_of(x, [](T each) { return std::isfinite(each); }));
}

template <typename T>
void check_positions(const KernelSet& set, int64_t count) {
  using N = Numbers<T>;
  std::vector<T> x =
      make_data<T>(static_cast<size_t>(count), DataKind::kSmall, find_format("fp32"), /*index=*/0);
  check_all(set, x);
  const int64_t stride = std::max<int64_t>(1, count / 70);
  for (int64_t at = 0; at < count; at += stride) {
    const T before = x[static_cast<size_t>(at)];
    for (const T value : {N::kInf, -N::kInf, N::kNan, -N::kNan, N::kLargest, -N::kLargest, T(-3)}) {
      CAPTURE(at);
      CAPTURE(value);
      x[static_cast<size_t>(at)] = value;
      check_all(set, x);
    }
    x[static_cast<size_t>(at)] = before;
  }
}

}  // namespace

TEST_CASE("largest magnitudes and finiteness, on every instruction set and with several threads") {
  for (const KernelSet* set : available_kernel_sets()) {
    CAPTURE(set->name);
    for (const int threads : {1, 3}) {
      const ThreadCountGuard guard(threads);
      for (const int64_t count : kSizes) {
        CAPTURE(count);
        check_positions<float>(*set, count);
        check_positions<double>(*set, count);
      }
    }
  }
}

TEST_CASE("largest magnitudes: nothing but NaN, zeros or subnormals") {
  for (const KernelSet* set : available_kernel_sets()) {
    CAPTURE(set->name);
    using N = Numbers<float>;
    check_all(*set, std::vector<float>(70, N::kNan));
    check_all(*set, std::vector<float>(70, -0.0f));
    check_all(*set, std::vector<float>(70, -N::kLeast));
    check_all(*set, std::vector<float>(70, -N::kInf));
    CHECK(std::signbit(set->f32.abs_max(std::vector<float>(70, -0.0f).data(), 70)) == false);
  }
}

}  // namespace lockstep
