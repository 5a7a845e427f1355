// Matrix products of a CPU unit, or of software instead of it, against the scalar loops under the
// unit's accumulator: sizes around the units' tiles and blocks.
#pragma once

#include <doctest/doctest.h>

#include <vector>

#include "emulation/accumulator/accumulator.h"
#include "emulation/kernels/scalar/kernels.h"
#include "tests/emulation/kernels/kernel_test_util.h"

namespace lockstep {

struct UnitProblem {
  int64_t m, n, k;
  bool transpose_a, transpose_b, start_from_c, with_events;
};

// Around the tiles (14 x 32, 14 x 64, 16 x 16), pairs and blocks of k; four beyond every block.
inline std::vector<UnitProblem> unit_problems() {
  std::vector<UnitProblem> list;
  const int64_t rows[] = {1, 13, 14, 15, 17, 40}, cols[] = {1, 16, 31, 33, 65, 130};
  const int64_t depths[] = {1, 2, 31, 32, 33, 100};
  uint32_t flags = 0;
  for (const int64_t m : rows) {
    for (const int64_t n : cols) {
      const int64_t k = depths[flags * 5 / 2 % 6];
      list.push_back(
          {m, n, k, (flags & 1) != 0, (flags & 2) != 0, (flags & 4) != 0, (flags & 8) != 0});
      ++flags;
    }
  }
  for (const bool t : {false, true}) {
    list.push_back({29, 70, 2051, t, t, t, t});
    list.push_back({3, 600, 65, t, !t, !t, t});
  }
  return list;
}

// The format of an accumulator's factors.
inline const Format& unit_factor_format(const Accumulator& accumulator) {
  return accumulator.operands.empty() ? *accumulator.format : *accumulator.operands[0];
}

// Returns how many products were compared, bit for bit, with their events.
inline int check_products(const Accumulator& accumulator, const std::vector<UnitProblem>& problems,
                          void (*gemm)(const GemmArgs<float>&)) {
  int compared = 0;
  const Format& factors = unit_factor_format(accumulator);
  // An FP32 sum has no events: no format is narrower than its container.
  const bool has_events = !accumulator.format->is_fp32();
  for (const DataKind kind : kAllData) {
    const auto count = [](int64_t a, int64_t b) { return static_cast<size_t>(a * b); };
    for (const UnitProblem& p : problems) {
      const auto a = make_data<float>(count(p.m, p.k), kind, factors, 1);
      const auto b = make_data<float>(count(p.k, p.n), kind, factors, 2);
      // One column more than the matrix has: it must not change.
      auto c = make_data<float>(count(p.m, p.n + 1), kind, *accumulator.register_format, 3);
      auto expected = c;
      std::vector<uint8_t> events(p.with_events && has_events ? count(p.m, p.n) : 0);
      std::vector<uint8_t> expected_events = events;
      GemmArgs<float> args{.transpose_a = p.transpose_a,
                           .transpose_b = p.transpose_b,
                           .m = p.m,
                           .n = p.n,
                           .k = p.k,
                           .a = a.data(),
                           .lda = p.transpose_a ? p.m : p.k,
                           .b = b.data(),
                           .ldb = p.transpose_b ? p.k : p.n,
                           .c = c.data(),
                           .ldc = p.n + 1,
                           .start_from_c = p.start_from_c,
                           .accumulator = &accumulator,
                           .a_format = &factors,
                           .b_format = &factors,
                           .events = events.empty() ? nullptr : events.data()};
      gemm(args);
      args.c = expected.data();
      args.events = events.empty() ? nullptr : expected_events.data();
      scalar_kernels().f32.gemm(args);
      CAPTURE(accumulator.name);
      CAPTURE(static_cast<int>(kind));
      CAPTURE(p.m);
      CAPTURE(p.n);
      CAPTURE(p.k);
      REQUIRE(same_bits(c, expected));
      REQUIRE(events == expected_events);
      ++compared;
    }
  }
  return compared;
}

}  // namespace lockstep
