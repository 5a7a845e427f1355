// Tests the table of formats: arithmetic of every row, names, and the IEEE family e<E>m<M>.
#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <set>
#include <string>

#include "emulation/format/format.h"
#include "emulation/format/oracle.h"
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

TEST_CASE("the fields of every row agree with each other") {
  std::set<std::string> names;
  int last_bits = 1000;
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
    CHECK(f.storage_bits() <= last_bits);
    last_bits = f.storage_bits();
    CHECK(f.has_subnormals());
    if (f.has_infinity) {
      CHECK(f.is_ieee_like());
      CHECK(f.emax == (1 << (f.exponent_bits - 1)) - 1);
      CHECK(f.emin == 1 - f.emax);
      CHECK(f.max_finite == std::ldexp(2 - f.machine_epsilon(), f.emax));
    } else {
      // The top exponent holds numbers. Only OCP's E4M3 has a NaN there, as its last code.
      CHECK(f.emax == (1 << f.exponent_bits) - 2 + f.emin);
      const double last_place = std::ldexp(f.machine_epsilon(), f.emax);
      const double full = std::ldexp(2.0, f.emax) - last_place;
      CHECK(f.max_finite == (f.has_nan && f.has_negative_zero ? full - last_place : full));
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
  CHECK(find_format("fp8_e4m3fnuz").max_finite == 240);
  CHECK(find_format("fp8_e4m3fnuz").min_subnormal() == 0x1p-10);
  CHECK(find_format("fp8_e5m2fnuz").max_finite == 57344);
  CHECK(find_format("fp8_e5m2fnuz").min_subnormal() == 0x1p-17);
  CHECK(find_format("fp6_e3m2").max_finite == 28);
  CHECK(find_format("fp6_e2m3").max_finite == 7.5);
  const Format& fp4 = find_format("fp4_e2m1");
  CHECK(nonnegative_values(fp4) == std::vector<double>{0, 0.5, 1, 1.5, 2, 3, 4, 6});
  CHECK(find_format("fp64").min_subnormal() == std::numeric_limits<double>::denorm_min());
  CHECK(ulp(1e6, find_format("fp16")) == 32);  // beyond the range: of the last binade
}

TEST_CASE("decode lists exactly the values of the definition, encode inverts it") {
  for (const Format* f : listable_formats()) {
    CAPTURE(f->name);
    const std::vector<double> values = nonnegative_values(*f);
    const uint64_t sign = uint64_t{1} << (f->storage_bits() - 1);
    size_t wrong = 0;
    for (size_t code = 0; code < values.size(); ++code) {
      wrong += decode(code, *f) != values[code];
      wrong += encode(values[code], *f) != code;
      wrong += !is_representable(values[code], *f);
      if (code == 0 && !f->has_negative_zero) continue;
      wrong += decode(code | sign, *f) != -values[code];
      wrong += encode(-values[code], *f) != (code | sign);
    }
    CHECK(wrong == 0);
    CHECK(values.back() == f->max_finite);
    // The other codes are infinity and the NaNs.
    const uint64_t specials = sign - values.size();
    const uint64_t nans_at_the_end = f->has_nan && f->has_negative_zero ? 1 : 0;
    CHECK(specials == (f->has_infinity ? uint64_t{1} << (f->precision - 1) : nans_at_the_end));
    size_t not_special = 0;
    for (uint64_t code = values.size(); code < sign; ++code) {
      not_special += std::isfinite(decode(code, *f));
    }
    CHECK(not_special == 0);
    if (f->has_negative_zero) {
      CHECK(decode(sign, *f) == 0);
      CHECK(std::signbit(decode(sign, *f)));
    } else {
      CHECK(std::isnan(decode(sign, *f)));
      CHECK(encode(std::nan(""), *f) == sign);
      CHECK(encode(-std::nan(""), *f) == sign);
      CHECK_THROWS_AS(encode(-0.0, *f), std::logic_error);
    }
    if (f->has_nan) CHECK(std::isnan(decode(encode(std::nan(""), *f), *f)));
    if (!f->has_nan) CHECK_THROWS_AS(encode(std::nan(""), *f), std::logic_error);
    if (f->has_infinity) CHECK(decode(encode(-kInfinity, *f), *f) == -kInfinity);
    if (!f->has_infinity) CHECK_THROWS_AS(encode(kInfinity, *f), std::logic_error);
    CHECK_THROWS_AS(encode(f->max_finite * 2, *f), std::logic_error);
  }
}

TEST_CASE("codes under a suffix: results that rounding cannot give") {
  const Format& saturating = find_format("fp16+saturate");
  CHECK(decode(0x7c00, saturating) == kInfinity);  // the suffix does not change the code
  CHECK_THROWS_AS(encode(kInfinity, saturating), std::logic_error);
  const Format& flushing = find_format("fp16+flush_in");
  CHECK(decode(0x8001, flushing) == 0);
  CHECK(std::signbit(decode(0x8001, flushing)));
  CHECK_THROWS_AS(encode(0x1p-24, flushing), std::logic_error);
  CHECK(encode(0x1p-14, flushing) == 0x0400);
  CHECK(flushing.min_subnormal() == 0x1p-14);
  CHECK(ulp(0x1p-20, flushing) == 0x1p-14);
  CHECK(ulp(0x1p-14, flushing) == 0x1p-24);
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
  auto list = listable_formats();
  for (const char* name : {"fp16+saturate", "fp16+flush_in", "e2m3+flush_out", "fp8_e4m3+saturate",
                           "fp8_e5m2+saturate+flush_in", "fp8_e4m3fnuz+saturate+flush_out"}) {
    list.push_back(&find_format(name));
  }
  for (const Format* wide : list) {
    for (const Format* narrow : list) {
      bool all = wide->has_nan || !narrow->has_nan;
      all = all && (wide->has_negative_zero || !narrow->has_negative_zero);
      all = all && (is_representable(kInfinity, *wide) || !is_representable(kInfinity, *narrow));
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

TEST_CASE("wrong names: the message says what is wrong") {
  CHECK_THROWS_WITH_AS(find_format("fp61"),
                       "format 'fp61': unknown; did you mean 'fp16'? (or e<E>m<M>, as in e6m9)",
                       InputError);
  // `lockstep list blocks` shows these, so they are known.
  for (const char* name : {"mxfp8_e4m3", "MXFP4", "nvfp4", "mxfp8-e4m3+ceil"}) {
    CHECK_THROWS_WITH_AS(find_format(name), doctest::Contains("a block format with shared scales"),
                         InputError);
  }
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

TEST_CASE("suffixes are part of the name, in one order, only where they differ") {
  const Format& f = find_format("fp8_e5m2+saturate+flush_in");
  CHECK(f.name == "fp8_e5m2+saturate+flush_in");
  CHECK(&find_format("E5M2+Flush-In+saturate") == &f);
  CHECK(&find_format("fp8_e5m2+flush_in+saturate") == &f);
  CHECK(f.overflow == OverflowRule::kSaturate);
  CHECK(f.subnormals == SubnormalRule::kFlushIn);
  CHECK(f.help.find("; saturate: ") != std::string::npos);
  CHECK(f.help.find("; flush_in: ") != std::string::npos);
  CHECK(&find_format("fp16+infinity+kept") == &find_format("fp16"));
  CHECK(&find_format("fp8_e4m3+nan") == &find_format("fp8_e4m3"));
  CHECK(&find_format("fp4_e2m1+saturate") == &find_format("fp4_e2m1"));
  CHECK(find_format("e4m3+kept+saturate").name == "e4m3+saturate");
  CHECK(&find_format("fp32+kept") == &find_format("fp32"));
  for (const char* name : {"fp32+saturate", "fp32+flush_in", "fp64+flush_out"}) {
    CHECK(!find_format(name).is_fp32());
    CHECK(!find_format(name).is_fp64());
  }
  std::set<std::string_view> names;
  for (const FormatSuffix& suffix : format_suffixes()) {
    CAPTURE(suffix.name);
    CHECK(suffix.overflow.has_value() != suffix.subnormals.has_value());
    CHECK(to_string(suffix.overflow.value_or(OverflowRule::kNan)) ==
          (suffix.overflow ? suffix.name : "nan"));
    CHECK(to_string(suffix.subnormals.value_or(SubnormalRule::kKept)) ==
          (suffix.subnormals ? suffix.name : "kept"));
    CHECK(names.insert(suffix.name).second);
    CHECK(!suffix.help.empty());
    CHECK(!suffix.source.empty());
  }
}

TEST_CASE("wrong suffixes: the message says what is wrong") {
  CHECK_THROWS_WITH_AS(
      find_format("fp16+saturated"),
      "format 'fp16+saturated': 'saturated' is not a suffix of a format; did you mean 'saturate'?",
      InputError);
  CHECK_THROWS_WITH_AS(find_format("fp8_e4m3+infinity"),
                       "format 'fp8_e4m3+infinity': 'infinity': fp8_e4m3 has no infinity; use "
                       "'saturate', or no suffix for fp8_e4m3's own, 'nan'",
                       InputError);
  CHECK_THROWS_WITH_AS(find_format("fp16+nan"),
                       "format 'fp16+nan': 'nan': fp16 has infinities, so overflow gives infinity "
                       "unless it saturates; use 'saturate', or no suffix for fp16's own, "
                       "'infinity'",
                       InputError);
  CHECK_THROWS_WITH_AS(find_format("fp4_e2m1+nan"),
                       "format 'fp4_e2m1+nan': 'nan': fp4_e2m1 has no NaN; use 'saturate', or no "
                       "suffix for fp4_e2m1's own, 'saturate'",
                       InputError);
  CHECK_THROWS_WITH_AS(find_format("bf16+flush_in+flush_out+"),
                       "format 'bf16+flush_in+flush_out+': 2 problems\n"
                       "  - 'flush_out' after 'flush_in', must be one subnormal suffix\n"
                       "  - '' is not a suffix of a format; known: infinity, saturate, nan, kept, "
                       "flush_in, flush_out",
                       InputError);
  CHECK_THROWS_AS(find_format("fp61+saturate"), InputError);
  CHECK_THROWS_AS(find_format("+saturate"), InputError);
}

TEST_CASE("IEEE-like names come with the hint that they are not the named ones") {
  CHECK(format_hint("e4m3") ==
        "'e4m3' follows IEEE rules (max 240); it is not 'fp8_e4m3' (max 448)");
  CHECK(format_hint("e4m3+saturate") == format_hint("e4m3"));
  CHECK(format_hint("e3m2") == "'e3m2' follows IEEE rules (max 14); it is not 'fp6_e3m2' (max 28)");
  CHECK(format_hint("e2m3") ==
        "'e2m3' follows IEEE rules (max 3.75); it is not 'fp6_e2m3' (max 7.5)");
  CHECK(format_hint("E2M1") == "'e2m1' follows IEEE rules (max 3); it is not 'fp4_e2m1' (max 6)");
  for (const char* name : {"fp8_e4m3", "e5m2", "e6m9", "fp16", "e9m3", "nonsense"}) {
    CAPTURE(name);
    CHECK(format_hint(name) == "");
  }
}
