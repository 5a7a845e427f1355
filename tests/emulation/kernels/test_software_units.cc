// Checks packing, cutting and order in the kernels for AMX tiles and AVX512-FP16.
// Few machines have these units. Here the same kernels run on software instead of the instructions,
// so that everything around the instructions is tested everywhere. `lockstep verify --hardware`
// tests the instructions themselves.
#include <doctest/doctest.h>

#include <array>
#include <cstring>

#define LOCKSTEP_HALF_TARGET

#include "emulation/accumulator/cpu_dot.h"
#include "emulation/format/double_arithmetic.h"
#include "emulation/format/rounding.h"
#include "emulation/kernels/cpu/gemm_amx_tile.h"
#include "emulation/kernels/cpu/gemm_fp16_tile.h"
#include "emulation/kernels/cpu_unit.h"
#include "tests/emulation/kernels/kernel_test_util.h"
#include "tests/emulation/kernels/unit_products.h"

namespace lockstep {
namespace {

// Not the canonical NaN: the hardware's need not be canonical either.
const float kOtherNan = std::bit_cast<float>(0xffc12345u);

// TILELOADD, TILESTORED, TDPBF16PS and TDPFP16PS on arrays. A tile has 16 rows of 64 bytes; the
// part outside its configured shape is zero.
struct SoftwareTiles {
  static constexpr int kRows = 16, kRowWords = 16;
  struct Tile {
    int rows = 0, row_words = 0;
    uint32_t words[kRows][kRowWords] = {};
  };
  static Tile& tile(int index) {
    static thread_local std::array<Tile, 3> tiles;
    return tiles[static_cast<size_t>(index)];
  }

  struct Session {
    explicit Session(const TileShape& shape) {
      configure(kTileSum, shape.rows, shape.columns);
      configure(kTileA, shape.rows, shape.pairs);
      configure(kTileB, shape.pairs, shape.columns);
    }
    ~Session() {
      for (const int index : {kTileSum, kTileA, kTileB}) tile(index) = {};
    }
    static void configure(int index, int rows, int row_words) {
      const bool is_allowed = rows >= 1 && rows <= kRows && row_words >= 1 &&
                              row_words <= kRowWords && tile(index).rows == 0;
      if (!is_allowed) throw std::logic_error("LDTILECFG: palette 1 has no such shape");
      tile(index) = {.rows = rows, .row_words = row_words};
    }
  };

  template <int kTile>
  static void load(const void* rows, int64_t row_step_bytes) {
    Tile& t = tile(kTile);
    if (t.rows == 0) throw std::logic_error("TILELOADD: no shape");
    for (int i = 0; i < t.rows; ++i) {
      std::memcpy(t.words[i], static_cast<const char*>(rows) + i * row_step_bytes,
                  static_cast<size_t>(t.row_words) * sizeof(uint32_t));
    }
  }
  template <int kTile>
  static void store(void* rows, int64_t row_step_bytes) {
    const Tile& t = tile(kTile);
    for (int i = 0; i < t.rows; ++i) {
      std::memcpy(static_cast<char*>(rows) + i * row_step_bytes, t.words[i],
                  static_cast<size_t>(t.row_words) * sizeof(uint32_t));
    }
  }
  static void dot_bf16() {
    dot([](uint32_t half) { return std::bit_cast<float>(half << 16); });
  }
  static void dot_fp16() {
    dot([](uint32_t half) { return static_cast<float>(decode(half, find_format("fp16"))); });
  }

 private:
  template <typename Value>
  static void dot(const Value& value) {
    Tile &sum = tile(kTileSum), &a = tile(kTileA), &b = tile(kTileB);
    if (a.row_words != b.rows || sum.rows != a.rows || sum.row_words != b.row_words) {
      throw std::logic_error("TDP: shapes that do not fit");
    }
    const auto factors = [&](const uint32_t* pair, float* out) {
      out[0] = value(*pair & 0xffff);
      out[1] = value(*pair >> 16);
    };
    for (int i = 0; i < sum.rows; ++i) {
      for (int j = 0; j < sum.row_words; ++j) {
        float x[2 * kRowWords], y[2 * kRowWords];
        for (int pair = 0; pair < a.row_words; ++pair) {
          factors(&a.words[i][pair], x + 2 * pair);
          factors(&b.words[pair][j], y + 2 * pair);
        }
        const float result =
            amx_tile_dot(x, y, 2 * a.row_words, std::bit_cast<float>(sum.words[i][j]));
        sum.words[i][j] = std::bit_cast<uint32_t>(std::isnan(result) ? kOtherNan : result);
      }
    }
  }
};

// 32 FP16 numbers in doubles; VFMADD*PH as one rounding of the exact sum.
struct SoftwareHalf {
  using Sums = std::array<double, kHalfLanes>;

  static uint16_t code(float x) { return static_cast<uint16_t>(encode(x, fp16())); }
  static Sums load(const uint16_t* words) {
    return each([&](size_t i) { return decode(words[i], fp16()); });
  }
  static Sums broadcast(uint16_t word) {
    return each([&](size_t) { return decode(word, fp16()); });
  }
  static Sums load_sums(const float* c, uint32_t mask) {
    return each([&](size_t i) { return (mask >> i & 1) != 0 ? double{c[i]} : 0.0; });
  }
  static void store_sums(const Sums& sum, float* c, uint32_t mask) {
    for (size_t i = 0; i < sum.size(); ++i) {
      if ((mask >> i & 1) != 0) c[i] = canonical_nan(static_cast<float>(sum[i]));
    }
  }
  static Sums fma(const Sums& x, const Sums& y, const Sums& acc) {
    return fma(x, y, acc, Rounding::kNearestEven);
  }
  static Sums fma_down(const Sums& x, const Sums& y, const Sums& acc) {
    return fma(x, y, acc, Rounding::kDown);
  }
  static Sums fma_up(const Sums& x, const Sums& y, const Sums& acc) {
    return fma(x, y, acc, Rounding::kUp);
  }
  static uint32_t not_finite(const Sums& x) {
    return mask([&](size_t i) { return !std::isfinite(x[i]); });
  }
  static uint32_t is_nan(const Sums& x) {
    return mask([&](size_t i) { return std::isnan(x[i]); });
  }
  static uint32_t is_zero(const Sums& x) {
    return mask([&](size_t i) { return x[i] == 0; });
  }
  static uint32_t differ(const Sums& x, const Sums& y) {
    return mask([&](size_t i) { return x[i] < y[i] || x[i] > y[i]; });
  }

 private:
  static const Format& fp16() {
    static const Format& format = find_format("fp16");
    return format;
  }
  template <typename Lane>
  static Sums each(const Lane& lane) {
    Sums out;
    for (size_t i = 0; i < out.size(); ++i) out[i] = lane(i);
    return out;
  }
  template <typename Lane>
  static uint32_t mask(const Lane& lane) {
    uint32_t bits = 0;
    for (size_t i = 0; i < kHalfLanes; ++i) bits |= uint32_t{lane(i)} << i;
    return bits;
  }
  static Sums fma(const Sums& x, const Sums& y, const Sums& acc, Rounding rounding) {
    return each([&](size_t i) {
      const double product = x[i] * y[i];  // exact
      const bool is_finite = std::isfinite(product) && std::isfinite(acc[i]);
      // With an odd last bit of the double, every rounding to 11 bits is right.
      const double sum = is_finite ? add_round_to_odd(product, acc[i]) : product + acc[i];
      return std::isfinite(sum) ? round_to_format(sum, fp16(), rounding) : sum;
    });
  }
};

// Sizes that software computes quickly, and one beyond every block of k.
std::vector<UnitProblem> small_problems() {
  constexpr int64_t kMostWork = 60'000;
  std::vector<UnitProblem> list;
  for (const UnitProblem& p : unit_problems()) {
    if (p.m * p.n * p.k <= kMostWork) list.push_back(p);
  }
  list.push_back({3, 20, 1100, true, false, true, true});
  list.push_back({18, 35, 1057, false, true, false, false});
  return list;
}

}  // namespace

TEST_CASE("software units: kernels of AMX tiles equal the scalar loops" *
          doctest::test_suite("slow")) {
  if (!cpu_has(CpuUnit::kF16c)) {
    MESSAGE("SKIPPED: 2 kernels: packing converts by F16C, which this CPU lacks");
    return;
  }
  const auto problems = small_problems();
  for (const char* name : {"amx_bf16", "amx_fp16"}) {
    const int compared =
        check_products(find_accumulator(name), problems, amx_gemm_on<SoftwareTiles>);
    CHECK(compared == static_cast<int>(std::size(kAllData) * problems.size()));
  }
}

TEST_CASE("software units: the kernel of AVX512-FP16 equals the scalar loops, events included") {
  const auto problems = small_problems();
  const int compared = check_products(
      find_accumulator("fp16"), problems,
      [](const GemmArgs<float>& args) { UnitGemm<Fp16Tile<SoftwareHalf>>(args).run(); });
  CHECK(compared == static_cast<int>(std::size(kAllData) * problems.size()));
}

TEST_CASE("software units: threads share the work of a kernel") {
  // Each thread has its own tiles.
  const ThreadCountGuard guard(3);
  const std::vector<UnitProblem> problem = {{200, 70, 40, false, true, true, false}};
  if (cpu_has(CpuUnit::kF16c)) {
    check_products(find_accumulator("amx_bf16"), problem, amx_gemm_on<SoftwareTiles>);
  }
}

}  // namespace lockstep
