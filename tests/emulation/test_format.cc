// The table of formats: every row against its own arithmetic, names, and the IEEE family e<E>m<M>.
#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <set>
#include <string>

#include "emulation/format.h"
#include "emulation/oracle.h"
#include "src/core/error.h"

using namespace lockstep;

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr int kListableBits = 20;

std::vector<const Format*> listable_formats() {
  std::vector<const Format*> list;
  for (const Format& f : formats()) {
    if (f.storage_bits() <= kListableBits) list.push_back(&f);
  }
  for (const char* name : {"e2m1", "e2m3", "e3m2", "e4m3", "e6m9", "e7m8", "e8m1"}) {
    list.push_back(&find_format(name));
  }
  return list;
}

}  // namespace

TEST_CASE("every row keeps its own arithmetic") {
  std::set<std::string> names;
  int last_precision = 1000;
  for (const Format& f : formats()) {
    CAPTURE(f.name);
    CHECK(&find_format(f.name) == &f);
    CHECK(names.insert(f.name).second);
    for (const std::string& alias : f.aliases) {
      CHECK(&find_format(alias) == &f);
      CHECK(names.insert(alias).second);
    }
    CHECK(!f.help.empty());
    CHECK(!f.source.empty());
    CHECK(f.precision <= last_precision);
    last_precision = f.precision;
    // Only the eight-bit OCP format with NaN in its last binade does not fill it.
    if (f.has_infinity) {
      CHECK(f.emax == (1 << (f.exponent_bits - 1)) - 1);
      CHECK(f.emin == 1 - f.emax);
      CHECK(f.max_finite == std::ldexp(2 - f.machine_epsilon(), f.emax));
    }
    CHECK(f.unit_roundoff() * 2 == f.machine_epsilon());
    CHECK(ulp(1.0, f) == f.machine_epsilon());
    CHECK(ulp(f.max_finite, f) == std::ldexp(1.0, f.emax - f.precision + 1));
    CHECK(ulp(0.0, f) == f.min_subnormal());
    CHECK(is_representable(f.max_finite, f));
    CHECK(is_representable(f.min_subnormal(), f));
    if (!f.is_fp64()) CHECK(!is_representable(f.min_subnormal() / 2, f));
  }
  CHECK(formats()[0].name == "fp64");
  CHECK(find_format("fp32").is_fp32());
}

TEST_CASE("limits that can be checked by hand") {
  CHECK(find_format("fp16").max_finite == 65504);
  CHECK(find_format("fp16").min_normal() == 0x1p-14);
  CHECK(find_format("fp16").min_subnormal() == 0x1p-24);
  CHECK(find_format("fp8_e4m3").max_finite == 448);
  CHECK(find_format("e4m3").max_finite == 240);
  CHECK(find_format("fp32").max_finite == std::numeric_limits<float>::max());
  CHECK(find_format("fp64").max_finite == std::numeric_limits<double>::max());
  CHECK(find_format("fp64").min_subnormal() == std::numeric_limits<double>::denorm_min());
  CHECK(ulp(1e6, find_format("fp16")) == 32);  // beyond the range: of the last binade
}

TEST_CASE("decode lists exactly the values of the definition, encode takes them back") {
  for (const Format* f : listable_formats()) {
    CAPTURE(f->name);
    const std::vector<double> values = nonnegative_values(*f);
    const uint64_t sign = uint64_t{1} << (f->storage_bits() - 1);
    size_t wrong = 0;
    for (size_t code = 0; code < values.size(); ++code) {
      wrong += decode(code, *f) != values[code];
      wrong += encode(values[code], *f) != code;
      wrong += decode(code | sign, *f) != -values[code];
      wrong += encode(-values[code], *f) != (code | sign);
      wrong += !is_representable(values[code], *f);
    }
    CHECK(wrong == 0);
    CHECK(values.back() == f->max_finite);
    CHECK(std::signbit(decode(sign, *f)));
    // What is left are infinity and the NaNs.
    const uint64_t specials = sign - values.size();
    CHECK(specials == (f->has_infinity ? uint64_t{1} << (f->precision - 1) : uint64_t{1}));
    size_t not_special = 0;
    for (uint64_t code = values.size(); code < sign; ++code) {
      not_special += std::isfinite(decode(code, *f));
    }
    CHECK(not_special == 0);
    CHECK(std::isnan(decode(encode(std::nan(""), *f), *f)));
    if (f->has_infinity) CHECK(decode(encode(-kInfinity, *f), *f) == -kInfinity);
    if (!f->has_infinity) CHECK_THROWS_AS(encode(kInfinity, *f), std::logic_error);
    CHECK_THROWS_AS(encode(f->max_finite * 2, *f), std::logic_error);
  }
}

TEST_CASE("fp32 and fp64 codes are the machine's") {
  const Format &fp32 = find_format("fp32"), &fp64 = find_format("fp64");
  for (const float x : {1.0f, -0.0f, 0x1p-149f, 0x1.fffffep-127f, 3.4e38f, -123.456f}) {
    CHECK(encode(x, fp32) == std::bit_cast<uint32_t>(x));
    CHECK(decode(std::bit_cast<uint32_t>(x), fp32) == x);
  }
  for (const double x : {1.0, -0.0, 0x1p-1074, 1.7e308, -1e-310}) {
    CHECK(encode(x, fp64) == std::bit_cast<uint64_t>(x));
    CHECK(decode(std::bit_cast<uint64_t>(x), fp64) == x);
  }
  CHECK(encode(std::nan(""), fp32) == 0x7fc00000u);
  CHECK(encode(std::nan(""), find_format("fp8_e4m3")) == 0x7f);
}

TEST_CASE("contains agrees with the lists of values") {
  const auto list = listable_formats();
  for (const Format* wide : list) {
    for (const Format* narrow : list) {
      bool all = (wide->has_infinity || !narrow->has_infinity);
      for (const double x : nonnegative_values(*narrow)) all = all && is_representable(x, *wide);
      INFO(wide->name << " contains " << narrow->name);
      CHECK(contains(*wide, *narrow) == all);
    }
    CHECK(contains(find_format("fp32"), *wide));
    CHECK(!contains(*wide, find_format("fp32")));
  }
}

TEST_CASE("e<E>m<M> follows IEEE rules and is made once") {
  const Format& f = find_format("e6m9");
  CHECK(&find_format("E6M9") == &f);
  CHECK(f.storage_bits() == 16);
  CHECK(f.max_finite == (2 - 0x1p-9) * 0x1p31);
  CHECK(f.min_subnormal() == 0x1p-39);
  CHECK(&find_format("e5m10") == &find_format("fp16"));
  CHECK(&find_format("e8m7") == &find_format("bf16"));
  CHECK(&find_format("e4m3") != &find_format("fp8_e4m3"));
  for (int e = 2; e <= 8; ++e) {
    for (int m = 1; m <= 23; ++m) {
      const Format& row = find_format("e" + std::to_string(e) + "m" + std::to_string(m));
      CHECK(row.exponent_bits == e);
      CHECK(row.precision == m + 1);
      CHECK(contains(find_format("fp32"), row));
    }
  }
}

TEST_CASE("wrong names say what is wrong") {
  CHECK_THROWS_WITH_AS(find_format("fp61"),
                       "format 'fp61': unknown; did you mean 'fp16'? (or e<E>m<M>, as in e6m9)",
                       InputError);
  CHECK_THROWS_WITH_AS(find_format("e9m3"),
                       "format 'e9m3': E = 9 exponent bits, must be 2 <= E <= 8", InputError);
  CHECK_THROWS_WITH_AS(find_format("e1m24"),
                       "format 'e1m24': 2 problems\n"
                       "  - E = 1 exponent bits, must be 2 <= E <= 8\n"
                       "  - M = 24 fraction bits, must be 1 <= M <= 23",
                       InputError);
  for (const char* name : {"", "e", "e5", "e5m", "m5e3", "e5m2x", "e99999999999m2", "e4m3 "}) {
    CAPTURE(name);
    CHECK_THROWS_AS(find_format(name), InputError);
  }
}

TEST_CASE("e4m3 comes with the hint that it is not fp8_e4m3") {
  CHECK(format_hint("e4m3") ==
        "'e4m3' follows IEEE rules (max 240); it is not 'fp8_e4m3' (max 448)");
  for (const char* name : {"fp8_e4m3", "e5m2", "e6m9", "fp16", "e9m3", "nonsense"}) {
    CAPTURE(name);
    CHECK(format_hint(name) == "");
  }
}
