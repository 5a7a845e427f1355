// Drawings from the fields of a row. Blocks are drawn to scale: one column per bit.
#include "emulation/accumulator/accumulator_picture.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <stdexcept>

#include "emulation/accumulator/aligned_block_core.h"
#include "emulation/accumulator/cpu_dot.h"

namespace lockstep {
namespace {

// Bits before and after the point in a column picture. Bits that are cut off are marked.
class BitRuler {
 public:
  // `kept`: the fraction bits that alignment keeps after the point of the common exponent.
  explicit BitRuler(int kept) : kept_(kept) {}

  // A number with `integers` bits before its point and `fraction` bits after it, `below` places
  // below the common exponent, then the text `what`.
  std::string line(int integers, int fraction, int below, const std::string& what) const {
    std::string text(kPoint + 1 + kColumns, ' ');
    const auto put = [&](int weight, char c) {  // weight: of the bit, 0 for the common exponent's
      const int place = weight >= 0 ? kPoint - 1 - weight : kPoint - weight;
      text[static_cast<size_t>(place + (-weight > kept_ ? 1 : 0))] = c;
    };
    for (int i = 0; i < integers; ++i) put(i - below, 'i');
    for (int i = 1; i <= fraction; ++i) put(-i - below, -i - below < -kept_ ? 'x' : 'f');
    text[kPoint] = '.';
    text[static_cast<size_t>(kPoint + kept_ + 1)] = '|';
    return text + what + "\n";
  }

  std::string scale() const {
    std::string text(kPoint + 1 + kColumns, ' ');
    const auto put = [&](size_t end, const std::string& label) {
      text.replace(end + 1 - label.size(), label.size(), label);
    };
    put(kPoint - 1, "2^E");
    put(static_cast<size_t>(kPoint + kept_), "2^(E-" + std::to_string(kept_) + ")");
    text.erase(text.find_last_not_of(' ') + 1);
    return text + "\n";
  }

 private:
  static constexpr size_t kPoint = 9;     // the column of the point: room for the sum's carries
  static constexpr size_t kColumns = 40;  // after it
  const int kept_;
};

// "0 to 15", or "0 1 4 5 ... 29": the k of a block's products.
std::string products_of(const BlockSpec& spec, int64_t first, int64_t interval) {
  const auto k = [&](int64_t i) { return ordered_index(spec.order, first + i, interval); };
  const int64_t last = spec.length - 1;
  if (spec.order == ProductOrder::kAscending) return fmt::format("{} to {}", k(0), k(last));
  return fmt::format("{} {} {} {} ... {} {}", k(0), k(1), k(2), k(3), k(last - 1), k(last));
}

std::string block_order(const BlockSpec& spec, const char* sum) {
  if (spec.promotion_interval == 0) {
    return fmt::format(
        "k = {} with c, then k = {} to {} with the result, ... ascending; zeros after the last "
        "k\n",
        products_of(spec, 0, spec.length), spec.length, 2 * spec.length - 1);
  }
  std::string text = "t = +0\n";
  for (int64_t i = 0; i < spec.promotion_interval; i += spec.length) {
    text += fmt::format("t = block(k = {}; t)\n", products_of(spec, i, spec.promotion_interval));
  }
  return text + fmt::format("c = {}(c + t), IEEE, to nearest even; then the next {} k\n", sum,
                            spec.promotion_interval);
}

std::string block_picture(const Accumulator& row) {
  const BlockSpec& spec = row.block;
  // The widest factors show the most bits.
  const auto wider = [](const Format* x, const Format* y) { return x->precision < y->precision; };
  const Format& factor = **std::max_element(row.operands.begin(), row.operands.end(), wider);
  const BitRuler ruler(spec.fraction_bits);
  const int product_fraction = 2 * (factor.precision - 1);
  // The product that shows the cut: half of its fraction lies below the grid.
  const int shown_below = spec.fraction_bits - product_fraction / 2;
  const int carries = std::bit_width(static_cast<unsigned>(spec.length));
  const Format& sum = *row.register_format;
  const bool to_nearest = spec.output == BlockOutput::kFp16NearestEven;
  const bool is_e8m13 = spec.output == BlockOutput::kE8m13TowardZero;
  const std::string out = is_e8m13 ? "e8m13 in an fp32 register" : sum.name;
  const int out_fraction = is_e8m13 ? find_format("e8m13").precision - 1 : sum.precision - 1;

  std::string text =
      fmt::format("{} products and the addend {}: one alignment, one sum, one rounding\n\n",
                  spec.length, spec.promotion_interval == 0 ? "c" : "t");
  text += ruler.scale();
  text += ruler.line(2, product_fraction, 0,
                     fmt::format("product of {}, exponent E = e_a + e_b", factor.name));
  text += ruler.line(2, product_fraction, shown_below,
                     fmt::format("another, exponent E - {}: x is cut off", shown_below));
  text += ruler.line(1, sum.precision - 1, 0, fmt::format("addend, {}, exponent E", sum.name));
  text += ruler.line(2 + carries, spec.fraction_bits, 0, "sum, exact");
  text += ruler.line(1, out_fraction, 0,
                     fmt::format("{}, {}", out, to_nearest ? "to nearest even" : "toward zero"));
  text += "\nE is the largest exponent";
  if (spec.exponent_floor != BlockSpec::kNoFloor) {
    text += fmt::format(", at least {}", spec.exponent_floor);
  }
  text += spec.zero_products == ZeroProducts::kIgnored ? "; zeros have none"
          : spec.zero_products == ZeroProducts::kFormatEmin
              ? "; a zero factor has its format's emin"
              : "; a zero factor has exponent -126";
  text += spec.keeps_negative_zero ? "\n\n" : "; -0 becomes +0\n\n";
  return text + block_order(spec, sum.name.c_str());
}

std::string chain_picture(const Accumulator& row) {
  const std::string& f = row.format->name;
  switch (row.kind) {
    case AccumulatorKind::kFusedChain:
      return fmt::format(
          "a[k] * b[k] --exact--+\n"
          "                      +--> exact sum --{0}--> acc      k = 0, 1, 2, ...\n"
          "acc ------------------+\n\n"
          "--{0}--> is a rounding to nearest even\n",
          f);
    case AccumulatorKind::kUnfusedChain:
      return fmt::format(
          "a[k] * b[k] --{0}--+\n"
          "              {1}+--> exact sum --{0}--> acc      k = 0, 1, 2, ...\n"
          "acc ----------{2}--+\n\n"
          "--{0}--> is a rounding to nearest even\n",
          f, std::string(f.size() + 2, ' '), std::string(f.size(), '-'));
    case AccumulatorKind::kKahan:
      return fmt::format(
          "a[k] * b[k] --{0}--> p\n"
          "p - lost    --{0}--> y\n"
          "acc + y     --{0}--> t\n"
          "t - acc     --{0}--> took\n"
          "took - y    --{0}--> lost      the excess of t; subtracted from the next product\n"
          "t           ------{1}> acc       k = 0, 1, 2, ...; lost starts as 0\n\n"
          "--{0}--> is a rounding to nearest even\n",
          f, std::string(f.size() - 2, '-'));
    default:
      return fmt::format(
          "p0  p1   p2  p3   p4  p5   p6      p[k] = {0}(a[k] * b[k])\n"
          "  \\/       \\/       \\/     |\n"
          "   +--------+        +------+       + = {0}(x + y)\n"
          "       |                 |\n"
          "       +--------+--------+\n"
          "                |\n"
          "            c --+--> sum\n\n"
          "roundings to nearest even; the addend comes last\n",
          f);
  }
}

std::string pairs_picture(AccumulatorKind kind) {
  switch (kind) {
    case AccumulatorKind::kBf16Pairs:
      return "a[k+1] * b[k+1] --exact--+\n"
             "                         +--fp32--> t --+\n"
             "acc ---------------------+              +--fp32--> acc      k = 0 2 4 ...\n"
             "                a[k] * b[k] --exact-----+\n\n"
             "--fp32--> is a rounding to nearest even; subnormal factors, addends and results are "
             "zeros\n";
    case AccumulatorKind::kAmxTile:
      return fmt::format(
          "a[0] b[0]   a[2] b[2]         a[{1}] b[{1}]\n"
          "    |           |                 |\n"
          "+0 fma -------> fma ---> ... ---> fma --> even --+\n"
          "                                                 +--fp32--> s --+\n"
          "+0 fma -------> fma ---> ... ---> fma --> odd ---+              +--fp32--> acc\n"
          "    |           |                 |                             |\n"
          "a[1] b[1]   a[3] b[3]         a[{2}] b[{2}]                 acc --+\n\n"
          "{0} k at a time; every step rounds to fp32, to nearest even; FP32 subnormals are "
          "zeros\n",
          2 * kAmxTilePairs, 2 * kAmxTilePairs - 2, 2 * kAmxTilePairs - 1);
    case AccumulatorKind::kArmPairs:
      return "a[k]   * b[k]   --odd--> p --+\n"
             "                             +--odd--> s --+\n"
             "a[k+1] * b[k+1] --odd--> q --+             +--odd--> acc      k = 0 2 4 ...\n"
             "                                     acc --+\n\n"
             "--odd--> is a rounding to odd in fp32, from 2^128 on infinity; subnormals in and out "
             "are zeros\n";
    default:
      return "a[k]   * b[k],   exact --+\n"
             "                         +--fp32--> s --+\n"
             "a[k+1] * b[k+1], exact --+              +--fp32--> acc      k = 0 2 4 ...\n"
             "                                  acc --+\n\n"
             "--fp32--> is a rounding to nearest even\n";
  }
}

}  // namespace

std::string accumulator_picture(const Accumulator& accumulator) {
  switch (accumulator.kind) {
    case AccumulatorKind::kAlignedBlocks:
      return block_picture(accumulator);
    case AccumulatorKind::kFusedChain:
    case AccumulatorKind::kUnfusedChain:
    case AccumulatorKind::kKahan:
    case AccumulatorKind::kPairwise:
      return chain_picture(accumulator);
    case AccumulatorKind::kBf16Pairs:
    case AccumulatorKind::kAmxTile:
    case AccumulatorKind::kArmPairs:
    case AccumulatorKind::kArmPairsFused:
      return pairs_picture(accumulator.kind);
  }
  throw std::logic_error("accumulator_picture: a kind without a drawing");
}

}  // namespace lockstep
