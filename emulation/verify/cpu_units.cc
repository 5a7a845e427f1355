// The units of CPUs and their models: the cases of each and the call of the model.
#include "emulation/verify/cpu_units.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <stdexcept>
#include <utility>

#include "emulation/accumulator/cpu_dot.h"
#include "emulation/accumulator/dot.h"
#include "emulation/format/rounding.h"
#include "emulation/kernels/cpu/instructions.h"
#include "emulation/kernels/cpu_unit.h"
#include "emulation/verify/bit_comparison.h"
#include "emulation/verify/dot_cases.h"

namespace lockstep {
namespace {

constexpr uint32_t kHalfMask = 0xffff;

// The unit's own NaN of case j, where its source specifies it.
using NanRule = uint32_t (*)(const CaseBatch& batch, int64_t j);

// c + sum of a[i] * b[i] under an accumulator. `unit` gets the fields in the order of DotCases.
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
  // of a few values in the first two.
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
    // With more products, c stays zero: only the factors vary.
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

// FP32 to a format of 16 bits. `model`: that format with the unit's subnormal rule.
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
    // Half of them in the range of the format's numbers.
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

// All 65536 are edge cases; no random ones remain.
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
// Models of instructions that this program has no code for, on any machine.
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
