// Finds the format that a name means.
// Reads NAME[+SUFFIX...]: a row of the table or an alias, or e<E>m<M>; then suffixes, which change
// what the format does at its ends. Knows nothing of bits and values.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

#include "emulation/format/block_format.h"
#include "emulation/format/format.h"
#include "emulation/format/spelling.h"
#include "src/core/error.h"
#include "src/core/find_row.h"
#include "src/core/text.h"

namespace lockstep {
namespace {

constexpr FormatSuffix kSuffixes[] = {
    {"infinity", OverflowRule::kInfinity, std::nullopt,
     "beyond the largest finite number: infinity, or that number in the modes that round towards "
     "zero there; formats with infinities only",
     "IEEE 754-2019 §7.4"},
    {"saturate", OverflowRule::kSaturate, std::nullopt,
     "beyond the largest finite number: that number with the value's sign; infinities too, NaN "
     "stays NaN",
     "OFP8 1.0, saturating conversion; OCP MX 1.0 §5.3; PTX cvt.satfinite"},
    {"nan", OverflowRule::kNan, std::nullopt,
     "beyond the largest finite number: NaN, or that number in the modes that round towards zero "
     "there; infinities become NaN; formats with NaN and without infinities only",
     "OFP8 1.0, non-saturating conversion"},
    {"kept", std::nullopt, SubnormalRule::kKept, "subnormal numbers are kept",
     "IEEE 754-2019 §3.3"},
    {"flush_in", std::nullopt, SubnormalRule::kFlushIn,
     "values below the smallest normal number count as zero of their sign, before they are rounded",
     "DAZ: Intel SDM vol. 1 §10.2.3.4"},
    {"flush_out", std::nullopt, SubnormalRule::kFlushOut,
     "subnormal results become zero of their sign; a result that rounds up to the smallest normal "
     "number stays",
     "as FTZ (Intel SDM vol. 1 §10.2.3.3), applied to the stored result"},
};

constexpr int kMinExponentBits = 2, kMaxExponentBits = 8;
constexpr int kMinFractionBits = 1, kMaxFractionBits = 23;

// "e4m3" -> {4, 3}, for any numbers; nothing if the text has another shape.
std::optional<std::pair<int, int>> parse_exmy(const std::string& name) {
  size_t at = 0;
  const auto number = [&](char letter) -> int {
    if (at >= name.size() || name[at] != letter) return -1;
    size_t digits = ++at;
    while (at < name.size() && std::isdigit(static_cast<unsigned char>(name[at]))) ++at;
    constexpr size_t kMaxDigits = 4;
    if (at == digits || at - digits > kMaxDigits) return -1;
    return std::stoi(name.substr(digits, at - digits));
  };
  const int exponent_bits = number('e');
  const int fraction_bits = exponent_bits < 0 ? -1 : number('m');
  if (fraction_bits < 0 || at != name.size()) return std::nullopt;
  return std::pair(exponent_bits, fraction_bits);
}

bool in_range(std::pair<int, int> widths) {
  return widths.first >= kMinExponentBits && widths.first <= kMaxExponentBits &&
         widths.second >= kMinFractionBits && widths.second <= kMaxFractionBits;
}

Format make_exmy(int exponent_bits, int fraction_bits) {
  Format f;
  f.name = "e" + std::to_string(exponent_bits) + "m" + std::to_string(fraction_bits);
  f.precision = fraction_bits + 1;
  f.emax = (1 << (exponent_bits - 1)) - 1;
  f.emin = 1 - f.emax;
  f.exponent_bits = exponent_bits;
  f.has_infinity = f.has_nan = true;
  f.overflow = OverflowRule::kInfinity;
  f.max_finite = std::ldexp(2.0 - f.machine_epsilon(), f.emax);
  f.help = std::to_string(f.storage_bits()) + " bits, IEEE rules, max (2 - 2^-" +
           std::to_string(fraction_bits) + ") 2^" + std::to_string(f.emax) + ", normal from 2^" +
           std::to_string(f.emin) + ", least 2^" + std::to_string(f.emin - fraction_bits);
  f.source = "IEEE 754-2019 §3.3 with these widths";
  return f;
}

// Formats outside the table: made once, alive as long as the process.
const Format& intern(Format format) {
  static std::mutex mutex;
  static std::map<std::string, std::unique_ptr<const Format>> made;
  const std::lock_guard lock(mutex);
  auto& slot = made[format.name];
  if (!slot) slot = std::make_unique<const Format>(std::move(format));
  return *slot;
}

// The format that `wanted`, without suffixes, means. `name`: the user's text.
const Format& find_base(const std::string& wanted, std::string_view name) {
  std::vector<std::string> known;
  for (const Format& row : formats()) {
    if (row.name == wanted) return row;
    known.push_back(row.name);
    for (const std::string& alias : row.aliases) {
      if (alias == wanted) return row;
      known.push_back(alias);
    }
  }
  const auto widths = parse_exmy(wanted);
  if (!widths) {
    if (names_block_format(wanted)) {
      throw InputError(
          "format '" + std::string(name) +
              "': a block format with shared scales, must be a format of single numbers here",
          "`lockstep round` and the C++ kernels (emulation/kernels/block_quantize.h) accept it; "
          "lanes do not yet");
    }
    throw InputError("format '" + std::string(name) + "': unknown",
                     did_you_mean(wanted, known) + " (or e<E>m<M>, as in e6m9)");
  }
  const auto [e, m] = *widths;
  ProblemList problems("format '" + std::string(name) + "'");
  if (e < kMinExponentBits || e > kMaxExponentBits) {
    problems.add("E = " + std::to_string(e) + " exponent bits, must be 2 <= E <= 8");
  }
  if (m < kMinFractionBits || m > kMaxFractionBits) {
    problems.add("M = " + std::to_string(m) + " fraction bits, must be 1 <= M <= 23");
  }
  problems.throw_if_any();
  return intern(make_exmy(e, m));
}

// Why `format` cannot have the suffix, or "".
std::string misfit(const FormatSuffix& suffix, const Format& format) {
  if (suffix.overflow == OverflowRule::kInfinity && !format.has_infinity) {
    return format.name + " has no infinity";
  }
  if (suffix.overflow == OverflowRule::kNan && format.has_infinity) {
    return format.name + " has infinities, so overflow gives infinity unless it saturates";
  }
  if (suffix.overflow == OverflowRule::kNan && !format.has_nan) {
    return format.name + " has no NaN";
  }
  return "";
}

// The suffixes after the name, at most one of each kind.
class Suffixes {
 public:
  Suffixes(const Format& base, std::string_view name)
      : base_(base), problems_("format '" + std::string(name) + "'") {}

  void add(const std::string& word) {
    const FormatSuffix* suffix = find_row_or_null(word, kSuffixes);
    if (suffix == nullptr) {
      problems_.add("'" + word + "' is not a suffix of a format",
                    did_you_mean(word, row_names(kSuffixes)));
      return;
    }
    const FormatSuffix*& slot = suffix->overflow ? overflow_ : subnormals_;
    if (slot != nullptr) {
      problems_.add(fmt::format("'{}' after '{}', must be one {} suffix", word, slot->name,
                                suffix->overflow ? "overflow" : "subnormal"));
    }
    slot = suffix;
    const std::string why = misfit(*suffix, base_);
    if (why.empty()) return;
    problems_.add("'" + word + "': " + why, "use 'saturate', or no suffix for " + base_.name +
                                                "'s own, '" +
                                                std::string(to_string(base_.overflow)) + "'");
  }

  const Format& apply() const {
    problems_.throw_if_any();
    Format format = base_;
    format.aliases.clear();
    if (overflow_ != nullptr && *overflow_->overflow != base_.overflow) {
      format.overflow = *overflow_->overflow;
      append(format, *overflow_);
    }
    if (subnormals_ != nullptr && *subnormals_->subnormals != base_.subnormals) {
      format.subnormals = *subnormals_->subnormals;
      append(format, *subnormals_);
    }
    return format.name == base_.name ? base_ : intern(std::move(format));
  }

 private:
  static void append(Format& format, const FormatSuffix& suffix) {
    format.name += '+';
    format.name += suffix.name;
    format.help += fmt::format("; {}: {}", suffix.name, suffix.help);
    format.source += fmt::format("; {}", suffix.source);
  }

  const Format& base_;
  ProblemList problems_;
  const FormatSuffix* overflow_ = nullptr;
  const FormatSuffix* subnormals_ = nullptr;
};

}  // namespace

std::span<const FormatSuffix> format_suffixes() {
  return kSuffixes;
}

std::string_view to_string(OverflowRule rule) {
  for (const FormatSuffix& row : kSuffixes) {
    if (row.overflow == rule) return row.name;
  }
  return "?";
}

std::string_view to_string(SubnormalRule rule) {
  for (const FormatSuffix& row : kSuffixes) {
    if (row.subnormals == rule) return row.name;
  }
  return "?";
}

const Format& find_format(std::string_view name) {
  const std::vector<std::string> words = split(canonical_spelling(name), '+');
  const Format& base = find_base(words.at(0), name);
  if (words.size() == 1) return base;
  Suffixes suffixes(base, name);
  for (size_t i = 1; i < words.size(); ++i) suffixes.add(words[i]);
  return suffixes.apply();
}

std::string format_hint(std::string_view name) {
  const std::string base = canonical_spelling(name.substr(0, name.find('+')));
  const auto widths = parse_exmy(base);
  if (!widths || !in_range(*widths)) return "";
  // The user may mean a named format with the same field widths but other special values.
  const Format& format = find_format(base);
  for (const Format& row : formats()) {
    if (row.exponent_bits != widths->first || row.precision != widths->second + 1) continue;
    if (row.max_finite == format.max_finite) return "";
    return fmt::format("'{}' follows IEEE rules (max {}); it is not '{}' (max {})", format.name,
                       format.max_finite, row.name, row.max_finite);
  }
  return "";
}

}  // namespace lockstep
