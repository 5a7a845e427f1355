// Kernel sets: which exist, how they are chosen.
#include <doctest/doctest.h>

#include "emulation/kernels/active_kernels.h"
#include "emulation/kernels/scalar/kernels.h"
#include "emulation/kernels/simd/targets.h"
#include "src/core/error.h"
#include "tests/emulation/kernels/kernel_test_util.h"

namespace lockstep {

TEST_CASE("kernel sets: scalar first, the fastest is active, names select") {
  const auto sets = available_kernel_sets();
  REQUIRE(!sets.empty());
  CHECK(sets.front() == &scalar_kernels());
  CHECK(&active_kernels() == sets.back());
  CHECK(sets.size() == size_t(1 + cpu_has_avx2() + cpu_has_avx512()));
  for (const KernelSet* set : sets) {
    select_kernels(set->name);
    CHECK(&active_kernels() == set);
  }
  CHECK_THROWS_WITH_AS(select_kernels("axv2"), doctest::Contains("avx2"), InputError);
  CHECK(&active_kernels() == sets.back());  // an error changes nothing
}

}  // namespace lockstep
