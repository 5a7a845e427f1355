// Kernel sets: which ones exist and how they are chosen.
#include <doctest/doctest.h>

#include <cstring>
#include <vector>

#include "emulation/kernels/active_kernels.h"
#include "emulation/kernels/scalar/kernels.h"
#include "emulation/kernels/simd/targets.h"
#include "src/core/error.h"
#include "tests/emulation/kernels/kernel_test_util.h"

namespace lockstep {
namespace {

// The number of null entries in a table of functions.
template <typename Table>
int missing_entries(const Table& table) {
  using Function = void (*)();
  constexpr size_t kEntries = sizeof(Table) / sizeof(Function);
  static_assert(sizeof(Table) == kEntries * sizeof(Function));
  int missing = 0;
  for (size_t i = 0; i < kEntries; ++i) {
    Function entry;
    std::memcpy(&entry, reinterpret_cast<const char*>(&table) + i * sizeof entry, sizeof entry);
    missing += entry == nullptr;
  }
  return missing;
}

// Those that a set may lack, because passes stand in for them.
template <typename T>
int missing_fused(const Kernels<T>& kernels) {
  return (kernels.rounded_gemm == nullptr ? 1 : 0) + (kernels.fill_and_quantize == nullptr ? 1 : 0);
}

}  // namespace

TEST_CASE("kernel sets: every set has every kernel, but those that passes replace") {
  std::vector<const KernelSet*> sets(available_kernel_sets().begin(),
                                     available_kernel_sets().end());
  sets.push_back(&cpu_engine_kernels());
  for (const KernelSet* set : sets) {
    CAPTURE(set->name);
    CHECK(missing_entries(set->f32) == missing_fused(set->f32));
    CHECK(missing_entries(set->f64) == missing_fused(set->f64));
    CHECK(missing_entries(set->i32) == 0);
  }
  Kernels<float> without_add = scalar_kernels().f32;
  without_add.add = nullptr;
  CHECK(missing_entries(without_add) == missing_entries(scalar_kernels().f32) + 1);
}

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
