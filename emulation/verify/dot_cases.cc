// Numbers are drawn by their exponents, because the exponents decide what happens to a sum.
#include "emulation/verify/dot_cases.h"

#include <algorithm>
#include <bit>

#include "emulation/format/rounding.h"

namespace lockstep {
namespace {

constexpr int kSpread = 3;  // of exponents about the middle

int around(CaseRandom& random, int middle, int spread) {
  return middle - spread + static_cast<int>(random.below(static_cast<uint32_t>(2 * spread + 1)));
}

uint32_t any_bits(CaseRandom& random, const Format& format) {
  return random.bits() >> (32 - format.storage_bits());
}

uint32_t edge(CaseRandom& random, const std::vector<uint32_t>& edges, const Format& format) {
  const uint32_t index = random.below(static_cast<uint32_t>(2 * edges.size()));
  return index < edges.size() ? edges[index] : any_bits(random, format);
}

}  // namespace

Decoder::Decoder(const Format& format) {
  if (format.is_fp32()) return;
  values_.resize(size_t{1} << format.storage_bits());
  for (size_t code = 0; code < values_.size(); ++code) {
    values_[code] = static_cast<float>(decode(code, format));
  }
}

uint32_t result_bits(double x, const Format& format) {
  return format.is_fp32() ? std::bit_cast<uint32_t>(static_cast<float>(x))
                          : static_cast<uint32_t>(encode(x, format));
}

uint32_t with_exponent(CaseRandom& random, const Format& format, int e) {
  const int fraction = format.precision - 1;
  const int field = std::clamp(e - format.emin + 1, 0, format.emax - format.emin + 1);
  const uint32_t bits = random.bits();
  const uint32_t sign = bits >> 31 << (format.storage_bits() - 1);
  return sign | static_cast<uint32_t>(field) << fraction | (bits & ((1u << fraction) - 1));
}

uint32_t near(CaseRandom& random, uint32_t bits) {
  return bits + random.below(5) - 2;
}

// The kinds of random cases of c + sum of a[i] * b[i], in equal shares:
enum class DotCases::Style : uint32_t {
  kAnyBits,       // every pattern equally likely
  kNearOne,       // exponents -3 to 3
  kCancelAddend,  // c within two places of -a[i] b[i], other products small
  kCancelPairs,   // products that cancel each other, c small
  kTiny,          // products about the smallest normal number of the sum
  kHuge,          // products about the largest
  kEdges,         // any mixture of edge values and patterns
  kStyles
};

DotCases::DotCases(const Format& factor, const Format& sum)
    : factor_(factor),
      sum_(sum),
      to_float_(factor),
      factor_edges_(edge_values(factor)),
      sum_edges_(edge_values(sum)) {}

void DotCases::draw(CaseRandom& random, uint32_t* words, int products) const {
  const auto style = static_cast<Style>(random.below(static_cast<uint32_t>(Style::kStyles)));
  words[0] = addend(random, style);
  for (int i = 0; i < products; ++i) draw_product(random, style, words + 1 + 2 * i);
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

uint32_t DotCases::addend(CaseRandom& random, Style style) const {
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

void DotCases::draw_product(CaseRandom& random, Style style, uint32_t* words) const {
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

}  // namespace lockstep
