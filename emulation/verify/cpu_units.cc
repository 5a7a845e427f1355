// The units of CPUs, each beside its model: what their cases are like and how the model is asked.
#include <algorithm>
#include <bit>
#include <cmath>
#include <stdexcept>
#include <utility>

#include "emulation/cpu/instructions.h"
#include "emulation/cpu/unit.h"
#include "emulation/cpu_dot.h"
#include "emulation/dot.h"
#include "emulation/rounding.h"
#include "emulation/verify/bit_comparison.h"

namespace lockstep {
namespace {

constexpr uint32_t kHalfMask = 0xffff;

// Words to the floats they hold; formats of 16 bits through a table.
class Decoder {
 public:
  explicit Decoder(const Format& format) {
    if (format.is_fp32()) return;
    values_.resize(size_t{1} << format.storage_bits());
    for (size_t code = 0; code < values_.size(); ++code) {
      values_[code] = static_cast<float>(decode(code, format));
    }
  }
  float operator()(uint32_t bits) const {
    return values_.empty() ? std::bit_cast<float>(bits) : values_[bits];
  }

 private:
  std::vector<float> values_;
};

uint32_t result_bits(double x, const Format& format) {
  return format.is_fp32() ? std::bit_cast<uint32_t>(static_cast<float>(x))
                          : static_cast<uint32_t>(encode(x, format));
}

// Any sign and fraction, exponent e; a subnormal when e is below the normal ones. Exponents beyond
// the format's count as its last.
uint32_t with_exponent(CaseRandom& random, const Format& format, int e) {
  const int fraction = format.precision - 1;
  const int field = std::clamp(e - format.emin + 1, 0, format.emax - format.emin + 1);
  const uint32_t bits = random.bits();
  const uint32_t sign = bits >> 31 << (format.storage_bits() - 1);
  return sign | static_cast<uint32_t>(field) << fraction | (bits & ((1u << fraction) - 1));
}
uint32_t any_bits(CaseRandom& random, const Format& format) {
  return random.bits() >> (32 - format.storage_bits());
}

// The word beside `bits` by at most two places: where cancellation is all but complete.
uint32_t near(CaseRandom& random, uint32_t bits) {
  return bits + random.below(5) - 2;
}

// What the random cases of c + sum of a[i] * b[i] are like, in equal shares:
enum class Style : uint32_t {
  kAnyBits,       // every pattern alike
  kNearOne,       // exponents -3 to 3
  kCancelAddend,  // c within two places of -a[i] b[i], other products small
  kCancelPairs,   // products that cancel each other, c small
  kTiny,          // products about the smallest normal number of the sum
  kHuge,          // products about the largest
  kEdges,         // any mixture of edge values and patterns
  kStyles
};

// Fields: c, then a and b of each product. Factors and sum in their formats.
class DotCases {
 public:
  DotCases(const Format& factor, const Format& sum)
      : factor_(factor),
        sum_(sum),
        to_float_(factor),
        factor_edges_(edge_values(factor)),
        sum_edges_(edge_values(sum)) {}

  void draw(CaseRandom& random, uint32_t* words, int products) const {
    const auto style = static_cast<Style>(random.below(static_cast<uint32_t>(Style::kStyles)));
    words[0] = addend(random, style);
    for (int i = 0; i < products; ++i) product(random, style, words + 1 + 2 * i);
    const auto chosen =
        2 * static_cast<int>(random.below(static_cast<uint32_t>(products)));  // any product
    if (style == Style::kCancelAddend) {
      const double value = double{to_float_(words[1 + chosen])} * to_float_(words[2 + chosen]);
      words[0] =
          near(random, result_bits(round_to_format(-value, sum_, Rounding::kNearestEven), sum_));
    } else if (style == Style::kCancelPairs) {
      const uint32_t sign = 1u << (factor_.storage_bits() - 1);
      for (int i = 0; i + 1 < products; i += 2) {
        uint32_t* pair = words + 1 + 2 * i;
        pair[2] = near(random, pair[0] ^ sign) & (sign | (sign - 1));
        pair[3] = pair[1];
      }
    }
    words[0] &= ~0u >> (32 - sum_.storage_bits());
  }

 private:
  static constexpr int kSpread = 3;  // of exponents about the middle

  int around(CaseRandom& random, int middle, int spread) const {
    return middle - spread + static_cast<int>(random.below(static_cast<uint32_t>(2 * spread + 1)));
  }
  uint32_t addend(CaseRandom& random, Style style) const {
    switch (style) {
      case Style::kAnyBits:
        return any_bits(random, sum_);
      case Style::kTiny:
        return with_exponent(random, sum_, around(random, sum_.emin, sum_.precision));
      case Style::kHuge:
        return with_exponent(random, sum_, around(random, sum_.emax, kSpread));
      case Style::kEdges:
        return edge(random, sum_edges_, sum_);
      case Style::kCancelPairs:
        return with_exponent(random, sum_, around(random, -sum_.precision, sum_.precision));
      default:
        return with_exponent(random, sum_, around(random, 0, kSpread));
    }
  }
  void product(CaseRandom& random, Style style, uint32_t* words) const {
    if (style == Style::kAnyBits) {
      words[0] = any_bits(random, factor_);
      words[1] = any_bits(random, factor_);
      return;
    }
    if (style == Style::kEdges) {
      words[0] = edge(random, factor_edges_, factor_);
      words[1] = edge(random, factor_edges_, factor_);
      return;
    }
    // The product's exponent, split into two.
    const int whole = style == Style::kTiny   ? around(random, sum_.emin, sum_.precision)
                      : style == Style::kHuge ? around(random, sum_.emax, kSpread)
                                              : around(random, 0, kSpread);
    const int first = around(random, whole / 2, kSpread);
    words[0] = with_exponent(random, factor_, first);
    words[1] = with_exponent(random, factor_, whole - first);
  }
  uint32_t edge(CaseRandom& random, const std::vector<uint32_t>& edges,
                const Format& format) const {
    const uint32_t index = random.below(static_cast<uint32_t>(2 * edges.size()));
    return index < edges.size() ? edges[index] : any_bits(random, format);
  }

  const Format &factor_, &sum_;
  Decoder to_float_;
  std::vector<uint32_t> factor_edges_, sum_edges_;
};

// The unit's own NaN of case j, where its source specifies it.
using NanRule = uint32_t (*)(const CaseBatch& batch, int64_t j);

// c + sum of a[i] * b[i] under an accumulator. `unit` gets the fields as DotCases orders them.
UnitResult compare_dot(const Accumulator& accumulator, const Format& factor, int products,
                       std::function<void(const CaseBatch&, uint32_t*)> unit,
                       const VerifyOptions& options, NanRule nan_rule = nullptr) {
  const Format& sum = *accumulator.register_format;
  const DotCases cases(factor, sum);
  const Decoder factor_value(factor), sum_value(sum);
  BitComparison comparison;
  comparison.result = &sum;
  comparison.nan_bits_count = nan_rule != nullptr;
  comparison.fields.push_back({"c", &sum});
  for (int i = 0; i < products; ++i) {
    const std::string index = products == 1 ? "" : std::to_string(i);
    comparison.fields.push_back({"a" + index, &factor});
    comparison.fields.push_back({"b" + index, &factor});
  }
  // All triples (c, a, b) of the first product, and of the second with the first zero; all tuples
  // of few values in the first two.
  const std::vector<uint32_t> zero = {0}, all = edge_values(factor), few = few_edge_values(factor);
  for (int i = 0; i < std::min(products, 2); ++i) {
    std::vector<std::vector<uint32_t>> lists(comparison.fields.size(), zero);
    lists[0] = edge_values(sum);
    lists[static_cast<size_t>(1 + 2 * i)] = lists[static_cast<size_t>(2 + 2 * i)] = all;
    comparison.edges.push_back(std::move(lists));
  }
  if (products > 1) {
    constexpr size_t kFieldsOfTwo = 5;
    std::vector<std::vector<uint32_t>> lists(comparison.fields.size(), zero);
    // A long model is asked about the products alone.
    if (products == 2) lists[0] = few_edge_values(sum);
    std::fill(lists.begin() + 1, lists.begin() + kFieldsOfTwo, few);
    comparison.edges.push_back(std::move(lists));
  }
  comparison.draw = [&](CaseRandom& random, uint32_t* words) {
    cases.draw(random, words, products);
  };
  comparison.unit = std::move(unit);
  comparison.model = [&](const CaseBatch& batch, uint32_t* results) {
    std::vector<float> a(static_cast<size_t>(products)), b(a);
    for (int64_t j = 0; j < batch.count; ++j) {
      for (int i = 0; i < products; ++i) {
        a[static_cast<size_t>(i)] = factor_value(batch.operand(1 + 2 * i)[j]);
        b[static_cast<size_t>(i)] = factor_value(batch.operand(2 + 2 * i)[j]);
      }
      const float c = sum_value(batch.operand(0)[j]);
      const DotOperands<float> operands{a.data(), b.data(), products, &factor, &factor};
      const double model = accumulator.adds() ? accumulate_step(accumulator, c, a[0], b[0])
                                              : accumulate_dot(accumulator, operands, c);
      const bool takes_rule = nan_rule != nullptr && std::isnan(model);
      results[j] = takes_rule ? nan_rule(batch, j) : result_bits(model, sum);
    }
  };
  return compare_bits(comparison, options);
}

// The words of one operand as an array of T.
template <typename T>
std::vector<T> operand(const CaseBatch& batch, int i) {
  const uint32_t* words = batch.operand(i);
  std::vector<T> values(static_cast<size_t>(batch.count));
  for (size_t j = 0; j < values.size(); ++j) {
    if constexpr (std::is_same_v<T, float>) {
      values[j] = std::bit_cast<float>(words[j]);
    } else {
      values[j] = static_cast<T>(words[j]);
    }
  }
  return values;
}
template <typename T>
void store_results(const std::vector<T>& values, uint32_t* results) {
  for (size_t j = 0; j < values.size(); ++j) {
    if constexpr (std::is_same_v<T, float>) {
      results[j] = std::bit_cast<uint32_t>(values[j]);
    } else {
      results[j] = values[j];
    }
  }
}

// --- conversions ---

// Every number of the format and every midpoint between two, each with its FP32 neighbours.
std::vector<uint32_t> boundaries(const Format& format) {
  std::vector<uint32_t> words = edge_values(find_format("fp32"));
  const auto count = static_cast<uint32_t>(encode(format.max_finite, format));
  constexpr uint32_t kSign = 0x80000000;
  for (uint32_t code = 0; code <= count; ++code) {
    const double x = decode(code, format), middle = x + ulp(x, format) / 2;
    for (const double value : {x, middle}) {
      const auto bits = std::bit_cast<uint32_t>(static_cast<float>(value));
      for (const uint32_t word : {bits - 1, bits, bits + 1}) {
        words.push_back(word & ~kSign);
        words.push_back(word | kSign);
      }
    }
  }
  return words;
}

// FP32 to a format of 16 bits. `model`: that format with the unit's subnormal policy.
UnitResult compare_narrowing(const char* format_name, const char* model_name, Rounding rounding,
                             void (*unit)(const float*, uint16_t*, int64_t, Rounding),
                             const VerifyOptions& options) {
  const Format &format = find_format(format_name), &model = find_format(model_name);
  const Format& fp32 = find_format("fp32");
  BitComparison comparison;
  comparison.result = &format;
  comparison.fields = {{"x", &fp32}};
  comparison.edges = {{boundaries(format)}};
  comparison.draw = [&](CaseRandom& random, uint32_t* words) {
    // Half of them where the format's numbers are.
    const bool near_range = random.below(2) != 0;
    const int lowest = format.emin - format.precision - 1, exponents = format.emax + 2 - lowest;
    words[0] = near_range
                   ? with_exponent(
                         random, fp32,
                         lowest + static_cast<int>(random.below(static_cast<uint32_t>(exponents))))
                   : random.bits();
  };
  comparison.unit = [&](const CaseBatch& batch, uint32_t* results) {
    std::vector<uint16_t> y(static_cast<size_t>(batch.count));
    unit(operand<float>(batch, 0).data(), y.data(), batch.count, rounding);
    store_results(y, results);
  };
  comparison.model = [&](const CaseBatch& batch, uint32_t* results) {
    for (int64_t j = 0; j < batch.count; ++j) {
      const auto x = std::bit_cast<float>(batch.operand(0)[j]);
      results[j] = result_bits(round_to_format(x, model, rounding), format);
    }
  };
  return compare_bits(comparison, options);
}

template <Rounding kRounding>
UnitResult run_vcvtps2ph(const VerifyOptions& options) {
  return compare_narrowing("fp16", "fp16", kRounding, cpu::vcvtps2ph, options);
}
UnitResult run_vcvtneps2bf16(const VerifyOptions& options) {
  return compare_narrowing(
      "bf16", "bf16+flush_in", Rounding::kNearestEven,
      [](const float* x, uint16_t* y, int64_t count, Rounding) { cpu::vcvtneps2bf16(x, y, count); },
      options);
}
UnitResult run_vcvtne2ps2bf16(const VerifyOptions& options) {
  return compare_narrowing(
      "bf16", "bf16+flush_in", Rounding::kNearestEven,
      [](const float* x, uint16_t* y, int64_t count, Rounding) {
        cpu::vcvtne2ps2bf16(x, y, count);
      },
      options);
}

// All 65536 are edge cases; there is nothing to draw.
UnitResult run_vcvtph2ps(const VerifyOptions& options) {
  const Format &fp16 = find_format("fp16"), &fp32 = find_format("fp32");
  BitComparison comparison;
  comparison.result = &fp32;
  comparison.fields = {{"x", &fp16}};
  std::vector<uint32_t> codes(size_t{1} << fp16.storage_bits());
  for (size_t code = 0; code < codes.size(); ++code) codes[code] = static_cast<uint32_t>(code);
  comparison.edges = {{std::move(codes)}};
  comparison.unit = [](const CaseBatch& batch, uint32_t* results) {
    std::vector<float> y(static_cast<size_t>(batch.count));
    cpu::vcvtph2ps(operand<uint16_t>(batch, 0).data(), y.data(), batch.count);
    store_results(y, results);
  };
  comparison.model = [&](const CaseBatch& batch, uint32_t* results) {
    for (int64_t j = 0; j < batch.count; ++j) {
      results[j] = result_bits(decode(batch.operand(0)[j], fp16), fp32);
    }
  };
  VerifyOptions all = options;
  all.cases = 0;
  UnitResult result = compare_bits(comparison, all);
  result.note = "every operand";
  return result;
}

// --- sums of products ---

UnitResult run_vfmadd231ps(const VerifyOptions& options) {
  const auto unit = [](const CaseBatch& batch, uint32_t* results) {
    std::vector<float> y(static_cast<size_t>(batch.count));
    cpu::vfmadd231ps(operand<float>(batch, 1).data(), operand<float>(batch, 2).data(),
                     operand<float>(batch, 0).data(), y.data(), batch.count);
    store_results(y, results);
  };
  return compare_dot(find_accumulator("fp32_fused"), find_format("fp32"), 1, unit, options);
}

UnitResult run_vdpbf16ps(const VerifyOptions& options) {
  constexpr int kBits = 16;
  const auto unit = [](const CaseBatch& batch, uint32_t* results) {
    const auto pairs = [&](int even, int odd) {
      std::vector<uint32_t> words(static_cast<size_t>(batch.count));
      for (size_t j = 0; j < words.size(); ++j) {
        words[j] = batch.operand(even)[j] | batch.operand(odd)[j] << kBits;
      }
      return words;
    };
    std::vector<float> y(static_cast<size_t>(batch.count));
    cpu::vdpbf16ps(pairs(1, 3).data(), pairs(2, 4).data(), operand<float>(batch, 0).data(),
                   y.data(), batch.count);
    store_results(y, results);
  };
  const auto nan_rule = [](const CaseBatch& batch, int64_t j) {
    const auto bf16 = [&](int i) { return batch.operand(i)[j] << kBits; };
    return vdpbf16ps_nan(bf16(1), bf16(2), bf16(3), bf16(4), batch.operand(0)[j]);
  };
  return compare_dot(find_accumulator("avx512_bf16"), find_format("bf16"), 2, unit, options,
                     nan_rule);
}

UnitResult run_vfmadd231ph(const VerifyOptions& options) {
  const auto unit = [](const CaseBatch& batch, uint32_t* results) {
    std::vector<uint16_t> y(static_cast<size_t>(batch.count));
    cpu::vfmadd231ph(operand<uint16_t>(batch, 1).data(), operand<uint16_t>(batch, 2).data(),
                     operand<uint16_t>(batch, 0).data(), y.data(), batch.count);
    store_results(y, results);
  };
  return compare_dot(find_accumulator("fp16"), find_format("fp16"), 1, unit, options);
}

// Two FP16 operands, one FP16 result: model(a, b) is exact or has double's round to odd.
UnitResult compare_half_pairs(void (*unit)(const uint16_t*, const uint16_t*, uint16_t*, int64_t),
                              double (*model)(double, double), const VerifyOptions& options) {
  const Format& fp16 = find_format("fp16");
  const DotCases cases(fp16, fp16);
  const Decoder value(fp16);
  BitComparison comparison;
  comparison.result = &fp16;
  comparison.fields = {{"a", &fp16}, {"b", &fp16}};
  comparison.edges = {{edge_values(fp16), edge_values(fp16)}};
  comparison.draw = [&](CaseRandom& random, uint32_t* words) {
    uint32_t drawn[3];  // c, a, b: c and a are near each other, a and b have a product in range
    cases.draw(random, drawn, 1);
    const bool sum_like = random.below(2) != 0;
    words[0] = drawn[1];
    words[1] = sum_like ? drawn[0] : drawn[2];
    constexpr uint32_t kSign = 0x8000;
    if (sum_like && random.below(2) != 0) words[1] = near(random, drawn[1] ^ kSign) & kHalfMask;
  };
  comparison.unit = [&](const CaseBatch& batch, uint32_t* results) {
    std::vector<uint16_t> y(static_cast<size_t>(batch.count));
    unit(operand<uint16_t>(batch, 0).data(), operand<uint16_t>(batch, 1).data(), y.data(),
         batch.count);
    store_results(y, results);
  };
  comparison.model = [&](const CaseBatch& batch, uint32_t* results) {
    for (int64_t j = 0; j < batch.count; ++j) {
      results[j] = result_bits(model(value(batch.operand(0)[j]), value(batch.operand(1)[j])), fp16);
    }
  };
  return compare_bits(comparison, options);
}
UnitResult run_vmulph(const VerifyOptions& options) {
  return compare_half_pairs(
      cpu::vmulph,
      [](double a, double b) {
        return round_to_format(a * b, find_format("fp16"), Rounding::kNearestEven);
      },
      options);
}
UnitResult run_vaddph(const VerifyOptions& options) {
  return compare_half_pairs(
      cpu::vaddph,
      [](double a, double b) { return accumulate_add(find_accumulator("fp16"), a, b); }, options);
}

using TileDots = void (*)(const uint16_t*, const uint16_t*, const float*, float*, int, int64_t);
UnitResult compare_tile(const char* accumulator, const char* format, TileDots unit,
                        const VerifyOptions& options) {
  constexpr int kPairs = 16, kFactors = 2 * kPairs;  // of one instruction
  const auto run = [unit](const CaseBatch& batch, uint32_t* results) {
    std::vector<uint16_t> a(static_cast<size_t>(batch.count * kFactors)), b(a);
    for (int64_t j = 0; j < batch.count; ++j) {
      for (int i = 0; i < kFactors; ++i) {
        const auto at = static_cast<size_t>(j * kFactors + i);
        a[at] = static_cast<uint16_t>(batch.operand(1 + 2 * i)[j]);
        b[at] = static_cast<uint16_t>(batch.operand(2 + 2 * i)[j]);
      }
    }
    std::vector<float> y(static_cast<size_t>(batch.count));
    unit(a.data(), b.data(), operand<float>(batch, 0).data(), y.data(), kPairs, batch.count);
    store_results(y, results);
  };
  return compare_dot(find_accumulator(accumulator), find_format(format), kFactors, run, options);
}
UnitResult run_tdpbf16ps(const VerifyOptions& options) {
  return compare_tile("amx_bf16", "bf16", cpu::tdpbf16ps, options);
}
UnitResult run_tdpfp16ps(const VerifyOptions& options) {
  return compare_tile("amx_fp16", "fp16", cpu::tdpfp16ps, options);
}

template <CpuUnit kUnit>
bool has(std::string* why_not) {
  return cpu_has(kUnit, why_not);
}
// Models whose instructions no kernel of this program drives, on any machine.
bool has_no_kernel(std::string* why_not) {
  if (why_not != nullptr) *why_not = "no code for this unit in this program";
  return false;
}
UnitResult run_no_kernel(const VerifyOptions&) {
  throw std::logic_error("verify: a unit without code");
}

constexpr HardwareUnit kUnits[] = {
    {kCpuGroup, "FMA", "VFMADD231PS", "fp32_fused", has<CpuUnit::kFma>, run_vfmadd231ps},
    {kCpuGroup, "F16C", "VCVTPS2PH RNE", "fp16, nearest_even", has<CpuUnit::kF16c>,
     run_vcvtps2ph<Rounding::kNearestEven>},
    {kCpuGroup, "F16C", "VCVTPS2PH RD", "fp16, down", has<CpuUnit::kF16c>,
     run_vcvtps2ph<Rounding::kDown>},
    {kCpuGroup, "F16C", "VCVTPS2PH RU", "fp16, up", has<CpuUnit::kF16c>,
     run_vcvtps2ph<Rounding::kUp>},
    {kCpuGroup, "F16C", "VCVTPS2PH RZ", "fp16, toward_zero", has<CpuUnit::kF16c>,
     run_vcvtps2ph<Rounding::kTowardZero>},
    {kCpuGroup, "F16C", "VCVTPH2PS", "fp16, decoded", has<CpuUnit::kF16c>, run_vcvtph2ps},
    {kCpuGroup, "AVX512-BF16", "VCVTNEPS2BF16", "bf16+flush_in", has<CpuUnit::kAvx512Bf16>,
     run_vcvtneps2bf16},
    {kCpuGroup, "AVX512-BF16", "VCVTNE2PS2BF16", "bf16+flush_in", has<CpuUnit::kAvx512Bf16>,
     run_vcvtne2ps2bf16},
    {kCpuGroup, "AVX512-BF16", "VDPBF16PS", "avx512_bf16", has<CpuUnit::kAvx512Bf16>,
     run_vdpbf16ps},
    {kCpuGroup, "AVX512-FP16", "VFMADD231PH", "fp16", has<CpuUnit::kAvx512Fp16>, run_vfmadd231ph},
    {kCpuGroup, "AVX512-FP16", "VMULPH", "fp16, nearest_even", has<CpuUnit::kAvx512Fp16>,
     run_vmulph},
    {kCpuGroup, "AVX512-FP16", "VADDPH", "fp16, nearest_even", has<CpuUnit::kAvx512Fp16>,
     run_vaddph},
    {kCpuGroup, "AMX-BF16", "TDPBF16PS", "amx_bf16", has<CpuUnit::kAmxBf16>, run_tdpbf16ps},
    {kCpuGroup, "AMX-FP16", "TDPFP16PS", "amx_fp16", has<CpuUnit::kAmxFp16>, run_tdpfp16ps},
    {kCpuGroup, "Arm BF16", "BFDOT, BFMMLA", "arm_bfdot", has_no_kernel, run_no_kernel},
    {kCpuGroup, "Arm EBF16", "BFDOT, BFMMLA", "arm_bfdot_ebf", has_no_kernel, run_no_kernel},
};

}  // namespace

std::span<const HardwareUnit> cpu_hardware_units() {
  return kUnits;
}

}  // namespace lockstep
