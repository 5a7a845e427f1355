// Masks drawn from a stream, and choices by masks: every instruction set against the numbers of the
// stream and the scalar kernels.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "emulation/kernels/active_kernels.h"
#include "emulation/kernels/scalar/elements/select.h"
#include "tests/emulation/kernels/kernel_test_util.h"

namespace lockstep {
namespace {

constexpr int64_t kSizes[] = {0, 1, 3, 4, 7, 8, 15, 31, 32, 63, 64, 65, 40003};

std::vector<int32_t> some_mask(int64_t count) {
  const RandomStream random(4, RandomPurpose::kTest);
  constexpr int32_t kValues[] = {0, 1, -1, 0, 256, 0, std::numeric_limits<int32_t>::min(), 0};
  std::vector<int32_t> mask(static_cast<size_t>(count));
  for (size_t i = 0; i < mask.size(); ++i) mask[i] = kValues[random.bits(i) % std::size(kValues)];
  return mask;
}

}  // namespace

TEST_CASE("masks: drawn numbers are those of the stream, on every instruction set") {
  const RandomStream stream(3, RandomPurpose::kDropout, 5);
  for (const uint64_t step : {uint64_t{0}, uint64_t{7}, (uint64_t{1} << 24) - 1}) {
    for (const double keep : {0.0, 0.25, 0.75, 0.9999999, 1.0}) {
      for (const int64_t count : kSizes) {
        std::vector<int32_t> want(static_cast<size_t>(count));
        for (size_t i = 0; i < want.size(); ++i) {
          want[i] = stream.bits((step << 40) + i) < std::nearbyint(std::ldexp(keep, 32)) ? 1 : 0;
        }
        for (const KernelSet* set : available_kernel_sets()) {
          for (const int threads : {1, 3}) {
            const ThreadCountGuard guard(threads);
            std::vector<int32_t> mask(want.size() + 1, -1);  // one more, which must not change
            set->i32.draw_mask(stream, step, keep, mask.data(), count);
            CAPTURE(set->name);
            CAPTURE(count);
            CAPTURE(keep);
            CHECK(mask.back() == -1);
            mask.pop_back();
            CHECK(mask == want);
          }
        }
      }
    }
  }
}

TEST_CASE_TEMPLATE("choices: every instruction set equals the scalar kernels", T, float, double) {
  for (const DataKind kind : {DataKind::kWide, DataKind::kSpecial}) {
    for (const int64_t count : kSizes) {
      const auto n = static_cast<size_t>(count);
      const auto a = make_data<T>(n, kind, find_format("fp32"), 6);
      const auto b = make_data<T>(n, kind, find_format("fp32"), 7);
      const std::vector<int32_t> mask = some_mask(count);
      for (const KernelSet* set : available_kernel_sets()) {
        const Kernels<T>& kernels = set->of<T>();
        CAPTURE(set->name);
        CAPTURE(count);
        const auto check = [&](auto got, auto want) {
          std::vector<T> y(n + 1, T(7)), z(n + 1, T(7));
          got(y.data());
          want(z.data());
          CHECK(same_bits(y, z));
        };
        for (const T scale : {T(1.25), T(0), std::numeric_limits<T>::infinity()}) {
          check([&](T* y) { kernels.masked_scale(a.data(), mask.data(), scale, y, count); },
                [&](T* y) { scalar_masked_scale(a.data(), mask.data(), scale, y, count); });
        }
        for (const auto& [u, v] :
             {std::pair(a.data(), b.data()), std::pair(static_cast<const T*>(nullptr), b.data()),
              std::pair(a.data(), static_cast<const T*>(nullptr))}) {
          const T constant = -std::numeric_limits<T>::infinity();
          check([&](T* y) { kernels.select(mask.data(), u, v, constant, y, count); },
                [&](T* y) { scalar_select(mask.data(), u, v, constant, y, count); });
        }
      }
    }
  }
}

}  // namespace lockstep
