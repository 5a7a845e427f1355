// Shared by the tests of the fused pass: the vector kernels of this CPU, formats of every shape,
// arrays that reach their limits, and the name of the first statistic that differs.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "emulation/kernels/quantize.h"
#include "emulation/kernels/simd/rounding/quantize.h"
#include "emulation/kernels/simd/targets.h"
#include "src/core/parallel.h"
#include "src/core/random.h"

namespace lockstep {

inline constexpr float kInfiniteFloat = std::numeric_limits<float>::infinity();

struct VectorKernels {
  std::string_view name;
  bool (*available)();
  decltype(&avx2_quantize) quantize;
  decltype(&avx2_compare) compare;
  decltype(&avx2_fill_and_quantize) fill_and_quantize;
};
inline constexpr VectorKernels kVectorKernels[] = {
    {"avx2", cpu_has_avx2, avx2_quantize, avx2_compare, avx2_fill_and_quantize},
    {"avx512", cpu_has_avx512, avx512_quantize, avx512_compare, avx512_fill_and_quantize},
};

// The kernels that this CPU runs; the others are reported.
inline std::vector<VectorKernels> vector_kernels() {
  std::vector<VectorKernels> list;
  for (const VectorKernels& k : kVectorKernels) {
    if (k.available()) {
      list.push_back(k);
    } else {
      MESSAGE("SKIPPED: 1 instruction set: this CPU lacks " << std::string(k.name));
    }
  }
  return list;
}

struct RestoreThreads {
  int count = thread_count();
  ~RestoreThreads() { set_thread_count(count); }
};

inline std::vector<const Format*> tested_formats() {
  std::vector<const Format*> list;
  for (const Format& f : formats()) {
    if (!f.is_fp64()) list.push_back(&f);
  }
  for (const char* name :
       {"e4m3", "e2m1", "e3m4", "e6m9", "e7m8", "e7m21", "e7m22", "e5m23", "e8m1", "e8m22"}) {
    list.push_back(&find_format(name));
  }
  for (const char* name :
       {"fp16+flush_in", "fp16+flush_out", "fp16+saturate", "bf16+flush_in",
        "bf16+saturate+flush_out", "fp8_e4m3+saturate", "fp8_e5m2+saturate+flush_in",
        "fp8_e4m3fnuz+saturate+flush_out", "fp32+flush_in", "fp32+saturate"}) {
    list.push_back(&find_format(name));
  }
  return list;
}

// The kinds of data in an array.
enum class Content { kTame, kWild, kLarge, kUsual, kNormal, kBits };

// A number between the format's least and its largest; kNormal: no subnormal, and no magnitude that
// needs a scale when it is squared. Ends of these ranges are frequent.
inline float make_inside(const Format& f, Content content, uint32_t bits, uint32_t more) {
  const bool normal = content == Content::kNormal;
  const int lowest = normal ? std::max(f.emin, -40) : std::max(f.emin - f.precision + 1, -149);
  const int highest = normal ? std::min(f.emax, 59) : f.emax;
  const double top = std::min(f.max_finite, std::ldexp(1.0, highest + 1) * (1 - 0x1p-24));
  if (more % 16 == 0) {
    const float least = std::ldexp(1.0f, lowest),
                smallest_normal = static_cast<float>(f.min_normal());
    const float ends[] = {least,
                          2 * least,
                          std::max(least, smallest_normal),
                          std::max(least, std::nextafter(smallest_normal, 0.0f)),
                          static_cast<float>(top),
                          std::nextafter(static_cast<float>(top), 0.0f)};
    return ends[(more >> 8) % (normal ? 3 : std::size(ends))];
  }
  const int e =
      lowest + static_cast<int>((more >> 4) % static_cast<uint32_t>(highest - lowest + 1));
  const uint32_t fraction = (more >> 24 & 3) != 0 ? bits >> 9 : bits >> 9 & 0x7ff << 12;
  return static_cast<float>(std::min(std::ldexp(1 + fraction * 0x1p-23, e), top));
}

// kTame: within the format's range; kWild: with limits, infinities, NaNs among them; kLarge: with
// finite numbers beyond the format's largest among them; kUsual, kNormal: zeros and make_inside,
// but every second array of kUsual has one number below the least; kBits: any bits.
inline std::vector<float> make_data(int64_t count, const Format& f, Content content,
                                    uint32_t index) {
  const RandomStream stream(2024, RandomPurpose::kTest, index);
  const float max = static_cast<float>(f.max_finite), least = static_cast<float>(f.min_normal());
  const float specials[] = {0.0f,
                            max,
                            std::nextafter(max, kInfiniteFloat),
                            max * 2,
                            least,
                            least / 2,
                            std::nextafter(least, 0.0f),
                            0x1p-149f,
                            0x1p-126f,
                            0x1.fffffep127f,
                            kInfiniteFloat,
                            std::nanf(""),
                            1.0f};
  std::vector<float> data(static_cast<size_t>(count));
  for (size_t i = 0; i < data.size(); ++i) {
    const uint32_t bits = stream.bits(2 * i), more = stream.bits(2 * i + 1);
    if (content == Content::kBits) {
      data[i] = std::bit_cast<float>(bits);
      continue;
    }
    const float sign = (more & 1) != 0 ? -1.0f : 1.0f;
    if (content == Content::kUsual || content == Content::kNormal) {
      data[i] = sign * ((more >> 12) % 8 == 0 ? 0.0f : make_inside(f, content, bits, more >> 1));
      continue;
    }
    if (content == Content::kLarge && more % 16 < 4) {
      const float large[] = {max, std::nextafter(max, kInfiniteFloat), max * 1.5f, max * 8};
      const float x = large[(more >> 8) % std::size(large)];
      data[i] = sign * (std::isfinite(x) ? x : max);
      continue;
    }
    if (content == Content::kWild && more % 16 == 0) {
      data[i] = sign * specials[(more >> 8) % std::size(specials)];
      continue;
    }
    // Exponents from below the subnormals to the top, with few enough fraction bits to hit ties.
    const int span = f.emax - f.emin + f.precision + 4;
    const int e = f.emax - 1 - static_cast<int>((more >> 1) % static_cast<uint32_t>(span));
    const uint32_t fraction = (more >> 20 & 3) != 0 ? bits >> 9 : bits >> 9 & 0x7ff << 12;
    const double x = std::ldexp(1 + fraction * 0x1p-23, e);
    data[i] = (more >> 22) % 8 == 0 ? sign * 0.0f : sign * static_cast<float>(x);
  }
  if (content == Content::kUsual && stream.bits(2 * data.size()) % 2 == 1) {
    const int lowest = f.emin - f.precision + 1;
    data[data.size() / 2] = std::nextafter(std::ldexp(1.0f, lowest), 0.0f);
  }
  return data;
}

inline bool same_bits(double a, double b) {
  return std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(b);
}

// The name of the first statistic that differs, or "".
inline std::string difference(const TensorStats& a, const TensorStats& b) {
  const ErrorStats none;
  for (const Statistic& row : statistics()) {
    const bool equal = row.kind() == StatisticKind::kCount
                           ? row.count(a, none) == row.count(b, none)
                           : same_bits(row.moment(a, none), row.moment(b, none));
    if (!equal) return std::string(row.name);
  }
  if (a.bits_hash != b.bits_hash) return "bits_hash";
  return a.exponent_histogram == b.exponent_histogram ? "" : "exponent_histogram";
}
inline std::string difference(const ErrorStats& a, const ErrorStats& b) {
  const TensorStats none;
  for (const Statistic& row : statistics()) {
    const bool equal = row.kind() == StatisticKind::kCount
                           ? row.count(none, a) == row.count(none, b)
                           : same_bits(row.moment(none, a), row.moment(none, b));
    if (!equal) return std::string(row.name);
  }
  return "";
}

inline std::string difference(const std::vector<float>& a, const std::vector<float>& b) {
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::bit_cast<uint32_t>(a[i]) != std::bit_cast<uint32_t>(b[i])) {
      return "element " + std::to_string(i);
    }
  }
  return "";
}

}  // namespace lockstep
