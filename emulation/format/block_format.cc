// THE table of block formats, their names with suffixes, and the arithmetic of one block.
#include "emulation/format/block_format.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

#include "emulation/format/power_of_two.h"
#include "emulation/format/spelling.h"
#include "emulation/format/whole_line.h"
#include "src/core/error.h"
#include "src/core/find_row.h"
#include "src/core/text.h"

namespace lockstep {
namespace {

constexpr ScaleRuleInfo kScaleRules[] = {
    {ScaleRule::kFloor, "floor",
     "2^(E - emax), amax = f * 2^E: amax lands in the element's last binade and may saturate there",
     "OCP MX 1.0, §6.3; torchao FLOOR"},
    {ScaleRule::kCeil, "ceil",
     "as floor, from the next power of two at or above amax: amax lands at 2^emax or below it, and "
     "nothing saturates",
     "torchao CEIL"},
    {ScaleRule::kRceil, "rceil",
     "the least power of two s with amax / s <= max_finite: nothing saturates. The quotient is "
     "compared exactly; FP32 division and cvt.rp.ue8m0 agree for scales above 2^-127",
     "cuBLAS documentation, \"1D Block Scaling for FP8 and FP4 Data Types\"; Transformer Engine's "
     "MXFP8; torchao RCEIL"},
    {ScaleRule::kRound, "round",
     "as floor, from amax rounded to the element's precision, ties away from zero: one higher "
     "only if amax rounds up to the next power of two",
     "torchao EVEN"},
};

BlockFormat mx_row(std::string name, std::vector<std::string> aliases, std::string_view element,
                   std::string help) {
  constexpr int kMxBlock = 32;
  return {.name = std::move(name),
          .aliases = std::move(aliases),
          .element = &find_format(fmt::format("{}+saturate", element)),
          .block_size = kMxBlock,
          .scale = ScaleFormat::kE8m0,
          .rule = ScaleRule::kFloor,
          .help = std::move(help),
          .source = "OCP Microscaling Formats (MX) 1.0, §5"};
}

// FP8 under power-of-two scales, in blocks other than MX's.
BlockFormat fp8_row(std::string_view element, std::string_view blocks, int size, std::string help,
                    std::string source) {
  return {.name = fmt::format("{}_{}", element, blocks),
          .aliases = {},
          .element = &find_format(fmt::format("{}+saturate", element)),
          .block_size = size,
          .scale = ScaleFormat::kE8m0,
          .rule = ScaleRule::kRceil,
          .help = std::move(help),
          .source = std::move(source)};
}

const std::vector<BlockFormat>& table() {
  constexpr int kLongBlock = 128;
  constexpr const char* kLongSource =
      "Transformer Engine, Float8BlockScaling: scales max_finite / amax, cut to powers of two";
  constexpr const char* kLineSource =
      "torchao, float8 row-wise: scales max_finite / amax, rounded down to powers of two";
  static const std::vector<BlockFormat> rows = {
      mx_row("mxfp8_e4m3", {"mxfp8"}, "fp8_e4m3",
             "32 elements of 8 bits, max 448 times a power of two"),
      mx_row("mxfp8_e5m2", {}, "fp8_e5m2", "32 elements of 8 bits, max 57344 times a power of two"),
      mx_row("mxfp6_e3m2", {}, "fp6_e3m2", "32 elements of 6 bits, max 28 times a power of two"),
      mx_row("mxfp6_e2m3", {}, "fp6_e2m3", "32 elements of 6 bits, max 7.5 times a power of two"),
      mx_row("mxfp4", {"mxfp4_e2m1"}, "fp4_e2m1",
             "32 elements of 4 bits (0, 0.5, 1, 1.5, 2, 3, 4, 6) times a power of two"),
      {.name = "nvfp4",
       .aliases = {"nvfp4_e2m1"},
       .element = &find_format("fp4_e2m1"),
       .block_size = 16,
       .scale = ScaleFormat::kE4m3,
       .rule = ScaleRule::kFloor,
       .help = "16 elements of 4 bits (0, 0.5, 1, 1.5, 2, 3, 4, 6) times an e4m3 number times one "
               "FP32 scale of the tensor",
       .source = "NVIDIA, arXiv 2509.25149; torchao nvfp4_quantize (with its lower clamp of block "
                 "scales, 2^-6, left out)"},
      fp8_row("fp8_e4m3", "block", kLongBlock,
              "128 elements of 8 bits, max 448 times a power of two", kLongSource),
      fp8_row("fp8_e5m2", "block", kLongBlock,
              "128 elements of 8 bits, max 57344 times a power of two", kLongSource),
      fp8_row("fp8_e4m3", "line", kWholeLine,
              "a whole row or column of 8 bits, max 448 times a power of two", kLineSource),
      fp8_row("fp8_e5m2", "line", kWholeLine,
              "a whole row or column of 8 bits, max 57344 times a power of two", kLineSource),
  };
  return rows;
}

const BlockFormat* find_row(const std::string& base) {
  for (const BlockFormat& row : table()) {
    if (row.name == base) return &row;
    for (const std::string& alias : row.aliases) {
      if (alias == base) return &row;
    }
  }
  return nullptr;
}

std::string base_name(const Format& element) {
  return element.name.substr(0, element.name.find('+'));
}

// Reads the suffixes after the name.
BlockFormat with_suffixes(const BlockFormat& row, std::span<const std::string> suffixes,
                          std::string_view name) {
  ProblemList problems("format '" + std::string(name) + "'");
  std::optional<ScaleRule> rule;
  std::string element = base_name(*row.element);
  bool overflow_named = false, element_named = false;
  for (const std::string& suffix : suffixes) {
    const ScaleRuleInfo* info = find_row_or_null(suffix, kScaleRules);
    const FormatSuffix* of_element = find_row_or_null(suffix, format_suffixes());
    if (info != nullptr) {
      if (row.scale != ScaleFormat::kE8m0) {
        problems.add("'+" + suffix + "': scale rules are for power-of-two scales, but " + row.name +
                     " has e4m3 scales");
      } else if (rule && *rule != info->rule) {
        problems.add("'+" + suffix + "': a second scale rule, at most one allowed");
      }
      rule = info->rule;
    } else if (of_element != nullptr) {
      element += "+" + suffix;
      element_named = true;
      overflow_named |= of_element->overflow.has_value();
    } else {
      std::vector<std::string> known = row_names(kScaleRules);
      std::ranges::copy(row_names(format_suffixes()), std::back_inserter(known));
      problems.add("'+" + suffix + "': unknown suffix", did_you_mean(suffix, known));
    }
  }
  problems.throw_if_any();

  BlockFormat made = row;
  made.rule = rule.value_or(row.rule);
  if (made.rule != row.rule) made.name += "+" + std::string(to_string(made.rule));
  if (element_named) {
    const OverflowRule own = row.element->overflow;
    if (!overflow_named) element += "+" + std::string(to_string(own));
    made.element = &find_format(element);
    if (made.element->overflow != own) {
      made.name += "+" + std::string(to_string(made.element->overflow));
    }
    if (made.element->subnormals != row.element->subnormals) {
      made.name += "+" + std::string(to_string(made.element->subnormals));
    }
  }
  return made;
}

template <typename T>
struct Layout;
template <>
struct Layout<float> {
  using Bits = uint32_t;
  static constexpr int kFractionBits = 23, kBias = 127;
};
template <>
struct Layout<double> {
  using Bits = uint64_t;
  static constexpr int kFractionBits = 52, kBias = 1023;
};

constexpr uint8_t kE8m0Nan = 0xff;
constexpr int kE8m0Bias = 127;
constexpr int kE8m0LargestCode = 254;

const Format& e4m3() {
  static const Format& format = find_format("fp8_e4m3+saturate");
  return format;
}

}  // namespace

std::span<const ScaleRuleInfo> scale_rules() {
  return kScaleRules;
}

std::string_view to_string(ScaleRule rule) {
  for (const ScaleRuleInfo& row : kScaleRules) {
    if (row.rule == rule) return row.name;
  }
  return "?";
}

double BlockFormat::bits_per_element() const {
  constexpr double kScaleBits = 8;
  return element->storage_bits() + kScaleBits / block_size;
}

std::span<const BlockFormat> block_formats() {
  return table();
}

bool names_block_format(std::string_view name) {
  return find_row(canonical_spelling(name.substr(0, name.find('+')))) != nullptr;
}

const BlockFormat& find_block_format(std::string_view name) {
  const std::vector<std::string> words = split(canonical_spelling(name), '+');
  const BlockFormat* row = find_row(words[0]);
  if (row == nullptr) {
    std::vector<std::string> known;
    for (const BlockFormat& format : table()) {
      known.push_back(format.name);
      known.insert(known.end(), format.aliases.begin(), format.aliases.end());
    }
    throw InputError("block format '" + std::string(name) + "': unknown",
                     did_you_mean(words[0], known));
  }
  if (words.size() == 1) return *row;
  BlockFormat made = with_suffixes(*row, std::span(words).subspan(1), name);
  if (made.name == row->name) return *row;
  static std::mutex mutex;
  static std::map<std::string, std::unique_ptr<const BlockFormat>> interned;
  const std::lock_guard lock(mutex);
  auto& slot = interned[made.name];
  if (!slot) slot = std::make_unique<const BlockFormat>(std::move(made));
  return *slot;
}

template <typename T>
T tensor_scale_of(T amax, const BlockFormat& format) {
  if (format.scale != ScaleFormat::kE4m3 || amax == 0) return 1;
  return amax / static_cast<T>(e4m3().max_finite * format.element->max_finite);
}

template <typename Bits>
Bits scale_rule_addend(const BlockFormat& format) {
  constexpr int kFractionBits =
      sizeof(Bits) == sizeof(float) ? Layout<float>::kFractionBits : Layout<double>::kFractionBits;
  constexpr Bits kAll = (Bits{1} << kFractionBits) - 1;
  const Format& element = *format.element;
  switch (format.rule) {
    case ScaleRule::kFloor:
      return 0;
    case ScaleRule::kCeil:
      return kAll;
    case ScaleRule::kRceil: {
      const double f_max = element.max_finite / power_of_two(element.emax);
      return kAll - static_cast<Bits>((f_max - 1) * power_of_two(kFractionBits));
    }
    case ScaleRule::kRound:
      return Bits{1} << (kFractionBits - element.precision);
  }
  return 0;
}

template <typename T>
uint8_t scale_code(T amax, T tensor_scale, const BlockFormat& format) {
  if (format.scale == ScaleFormat::kE4m3) {
    if (std::isnan(amax)) {
      return static_cast<uint8_t>(encode(std::numeric_limits<double>::quiet_NaN(), e4m3()));
    }
    if (amax == 0 || tensor_scale == 0) return 0;
    const T wanted = amax / static_cast<T>(format.element->max_finite) / tensor_scale;
    return static_cast<uint8_t>(
        encode(round_to_format(wanted, e4m3(), Rounding::kNearestEven), e4m3()));
  }
  if (std::isnan(amax)) return kE8m0Nan;
  // Subnormals and zero have field 0 or 1 here: both are below the clamp for emax >= 2.
  using L = Layout<T>;
  const auto bits =
      std::bit_cast<typename L::Bits>(amax) + scale_rule_addend<typename L::Bits>(format);
  const int field = static_cast<int>(bits >> L::kFractionBits);
  const int code = field - L::kBias - format.element->emax + kE8m0Bias;
  return static_cast<uint8_t>(std::clamp(code, 0, kE8m0LargestCode));
}

double scale_value(uint8_t code, const BlockFormat& format) {
  if (format.scale == ScaleFormat::kE4m3) return decode(code, e4m3());
  return code == kE8m0Nan ? std::numeric_limits<double>::quiet_NaN()
                          : power_of_two(code - kE8m0Bias);
}

template <typename T>
T block_scale(uint8_t code, T tensor_scale, const BlockFormat& format) {
  const double block = scale_value(code, format);
  if (std::isnan(block)) return std::numeric_limits<T>::quiet_NaN();
  return static_cast<T>(block) * tensor_scale;  // e8m0: times 1
}

template <typename T>
double block_element(T x, T scale, const BlockFormat& format, Rounding rounding, uint32_t random) {
  if (std::isnan(scale)) return std::numeric_limits<double>::quiet_NaN();
  if (scale == 0) return std::copysign(0.0, static_cast<double>(x));
  const double quotient = format.scale == ScaleFormat::kE8m0
                              ? static_cast<double>(x) / static_cast<double>(scale)
                              : static_cast<double>(x / scale);
  return round_to_format(quotient, *format.element, rounding, random);
}

template <typename T>
T block_value(double element, T scale) {
  if (std::isnan(element)) return std::numeric_limits<T>::quiet_NaN();
  return static_cast<T>(element) * scale;
}

template float tensor_scale_of(float, const BlockFormat&);
template double tensor_scale_of(double, const BlockFormat&);
template uint32_t scale_rule_addend(const BlockFormat&);
template uint64_t scale_rule_addend(const BlockFormat&);
template uint8_t scale_code(float, float, const BlockFormat&);
template uint8_t scale_code(double, double, const BlockFormat&);
template float block_scale(uint8_t, float, const BlockFormat&);
template double block_scale(uint8_t, double, const BlockFormat&);
template double block_element(float, float, const BlockFormat&, Rounding, uint32_t);
template double block_element(double, double, const BlockFormat&, Rounding, uint32_t);
template float block_value(double, float);
template double block_value(double, double);

}  // namespace lockstep
