// A tensor core's block in float and 32-bit integer lanes: the fast form, for calm blocks
// (emulation/simd/block_rules.h). One lane is one output.
//
//   E       bytes: the largest sum of the factors' exponents, all columns at a time; then c's
//   term    int(a * b * 2^(F - E)), which cuts toward zero; product and scaling are exact
//   sum     32-bit integers; where a whole block could overflow them, two halves that join last
//   result  float(sum), cut toward zero or to odd, times 2^(E - F), which is exact
//
// Included once per instruction set.
#if defined(LOCKSTEP_BLOCK_FLOAT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LOCKSTEP_BLOCK_FLOAT_INL_H_
#undef LOCKSTEP_BLOCK_FLOAT_INL_H_
#else
#define LOCKSTEP_BLOCK_FLOAT_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>
#include <limits>

#include "emulation/dot.h"
#include "emulation/simd/block_operands-inl.h"
#include "emulation/simd/block_rules.h"
#include "emulation/simd/narrow-inl.h"
#include "emulation/simd/targets.h"

HWY_BEFORE_NAMESPACE();
namespace lockstep {
namespace HWY_NAMESPACE {
#if LOCKSTEP_SIMD_TARGET
namespace hn = hwy::HWY_NAMESPACE;

using IntTag = hn::RebindToSigned<FloatTag>;
using IntVec = hn::Vec<IntTag>;

inline constexpr int kFloatLanes = static_cast<int>(hn::MaxLanes(FloatTag()));
// A row of exponent bytes fills one register: 64 columns with AVX-512.
inline constexpr int kBlockVectors = 4;
inline constexpr int kBlockColumns = kBlockVectors * kFloatLanes;
inline constexpr int kBlockRows = 64;

// One block of a tile: rows x columns outputs, c[i * kBlockColumns + j], which hold the addends
// and receive the results. `events` likewise, or null.
struct BlockTask {
  const BlockRules* rules;
  const BlockSide<kBlockRows>* a;
  const BlockSide<kBlockColumns>* b;
  int count;  // products, a multiple of kUnroll
  int rows, columns;
  float* c;
  uint32_t* events;
};

// Toward zero. Requires: |x| < 2^31, or the lane is not used. (hn::ConvertTo saturates at a cost.)
HWY_INLINE IntVec truncate_to_int(FloatVec x) {
#if HWY_TARGET == HWY_AVX3
  return IntVec{_mm512_cvttps_epi32(x.raw)};
#else
  return IntVec{_mm256_cvttps_epi32(x.raw)};
#endif
}

// The float next to x toward zero. Requires: |x| < 2^31.
HWY_INLINE FloatVec int_toward_zero(FloatTag d, IntVec x) {
#if HWY_TARGET == HWY_AVX3
  (void)d;
  return FloatVec{_mm512_cvt_roundepi32_ps(x.raw, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC)};
#else
  const IntTag di;
  const IntVec magnitude = hn::Abs(x);
  const FloatVec nearest = hn::ConvertTo(d, magnitude);
  // Negative where `nearest` lies above; 2^31 wraps to the most negative number, which serves.
  const IntVec rest = hn::Sub(magnitude, truncate_to_int(nearest));
  const IntVec bits = hn::Add(hn::BitCast(di, nearest), hn::ShiftRight<31>(rest));
  return hn::CopySign(hn::BitCast(d, bits), hn::BitCast(d, x));
#endif
}

template <BlockOutput kOutput, bool kSplit, bool kEvents, int kN>
class FloatBlock {
 public:
  explicit FloatBlock(const BlockTask& task)
      : a_(*task.a),
        b_(*task.b),
        count_(task.count),
        first_count_(kSplit ? std::min(task.count, task.rules->spec.length / 2) : task.count),
        rows_(task.rows),
        fraction_bits_(task.rules->spec.fraction_bits),
        lowest_common_(std::max(CalmBlock::kLowestCommon, task.rules->spec.exponent_floor)),
        keeps_negative_zero_(task.rules->spec.keeps_negative_zero),
        c_(task.c),
        events_(reinterpret_cast<int32_t*>(task.events)) {}

  HWY_NOINLINE void run() {
    for (int i = 0; i < rows_; i += kRowsAtOnce) common_exponents(i);
    const Constants constants(*this);
    const int rows = rows_;
    for (int i = 0; i < rows; ++i) row(constants, i);
  }

 private:
  static constexpr int kRowsAtOnce = 4;
  static constexpr bool kFp16 = kOutput == BlockOutput::kFp16NearestEven;
  using Mask = hn::Mask<FloatTag>;

  // Held in registers over all rows: the compiler must fear that stores of sums change members.
  struct Constants {
    explicit Constants(const FloatBlock& block)
        : a(block.a_.values),
          b(block.b_.values),
          common(block.common_),
          c(block.c_),
          count(block.count_),
          first_count(block.first_count_) {
      const IntTag di;
      // 2^(F - E) has the biased exponent 2 * 127 + F - (E + 127); 2^(E - F) has (E + 127) - F.
      const auto bits = [](int biased) {
        return static_cast<int32_t>(static_cast<uint32_t>(biased) << kFloatFractionBits);
      };
      up = hn::Set(di, bits(2 * kFloatBias + block.fraction_bits_));
      down = hn::Set(di, bits(block.fraction_bits_));
      field = hn::Set(di, static_cast<int32_t>(kExponentBits));
    }
    const float *a, *b;
    const uint32_t* common;
    float* c;
    int count, first_count;
    IntVec up, down, field;
  };

  // Biased common exponents of the products of rows i to i + 3, in the places of b's bytes:
  // the largest of a's + b's. A saturating sum with kNoExponentByte is at most -128 + 63.
  HWY_INLINE void common_exponents(int i) {
    const hn::ScalableTag<int8_t> d;
    using V = hn::Vec<decltype(d)>;
    static_assert(-128 + CalmBlock::kHighestFactor < CalmBlock::kLowestCommon);
    V largest[kRowsAtOnce];
    const int8_t* HWY_RESTRICT a[kRowsAtOnce];
    HWY_UNROLL(4)
    for (int r = 0; r < kRowsAtOnce; ++r) {
      largest[r] = hn::Set(d, static_cast<int8_t>(lowest_common_));
      a[r] = reinterpret_cast<const int8_t*>(a_.bytes) + BlockSide<kBlockRows>::byte_place(i + r);
    }
    const auto* HWY_RESTRICT b = reinterpret_cast<const int8_t*>(b_.bytes);
    for (int k = 0; k < count_; ++k) {
      const V y = hn::Load(d, b + k * kBlockColumns);
      HWY_UNROLL(4)
      for (int r = 0; r < kRowsAtOnce; ++r) {
        largest[r] = hn::Max(largest[r], hn::SaturatedAdd(hn::Set(d, a[r][k * kBlockRows]), y));
      }
    }
    HWY_UNROLL(4)
    for (int r = 0; r < kRowsAtOnce; ++r) {
      const V biased = hn::Add(largest[r], hn::Set(d, int8_t{kFloatBias}));
      hn::Store(biased, d, reinterpret_cast<int8_t*>(common_ + (i + r) * kFloatLanes));
    }
  }

  // Byte j of every lane, as a float's exponent field.
  template <int kJ>
  static HWY_INLINE IntVec exponent_field(IntVec bytes) {
    constexpr int kLeft = kFloatFractionBits - 8 * kJ;
    const auto bits = hn::BitCast(hn::RebindToUnsigned<IntTag>(), bytes);
    const IntTag di;
    if constexpr (kLeft >= 0) {
      return hn::BitCast(di, hn::ShiftLeft<kLeft>(bits));
    } else {
      return hn::BitCast(di, hn::ShiftRight<-kLeft>(bits));
    }
  }

  HWY_INLINE void row(const Constants& t, int i) const {
    const FloatTag d;
    const IntTag di;
    const IntVec bytes =
        hn::BitCast(di, hn::Load(hn::RebindToUnsigned<IntTag>(), t.common + i * kFloatLanes));
    const float* HWY_RESTRICT c = t.c + i * kBlockColumns;
    IntVec common[kBlockVectors] = {exponent_field<0>(bytes), exponent_field<1>(bytes),
                                    exponent_field<2>(bytes), exponent_field<3>(bytes)};
    FloatVec scale[kN];
    IntVec sum[kN], rest[kN], lost[kN];
    HWY_UNROLL(4)
    for (int j = 0; j < kN; ++j) {
      const FloatVec addend = hn::Load(d, c + j * kFloatLanes);
      const IntVec own = hn::And(hn::BitCast(di, addend), t.field);
      common[j] = hn::Max(hn::And(common[j], t.field), own);
      if (kFp16) {
        // Subnormals of FP16 have the exponent emin.
        constexpr int kFp16Emin = -14;
        const IntVec emin = hn::Set(di, (kFp16Emin + kFloatBias) << kFloatFractionBits);
        common[j] = hn::IfThenElse(hn::Ne(own, hn::Zero(di)), hn::Max(common[j], emin), common[j]);
      }
      scale[j] = hn::BitCast(d, hn::Sub(t.up, common[j]));
      const FloatVec scaled = hn::Mul(addend, scale[j]);
      sum[j] = truncate_to_int(scaled);
      rest[j] = lost[j] = hn::Zero(di);
      if (kEvents) note_lost(scaled, sum[j], lost[j]);
    }
    add_products(t, i, 0, t.first_count, scale, sum, lost);
    if (kSplit) add_products(t, i, t.first_count, t.count, scale, rest, lost);

    IntVec total[kN];
    Mask halved[kN];
    join(sum, rest, total, halved);
    HWY_UNROLL(4)
    for (int j = 0; j < kN; ++j) {
      const FloatVec unit = hn::BitCast(d, hn::Sub(common[j], t.down));
      store(t, i, j, total[j], halved[j], unit, lost[j]);
    }
  }

  static HWY_INLINE void note_lost(FloatVec scaled, IntVec kept, IntVec& lost) {
    const IntTag di;
    const auto back = hn::BitCast(di, hn::ConvertTo(FloatTag(), kept));
    lost = hn::Or(lost, hn::Xor(back, hn::BitCast(di, scaled)));
  }

  static HWY_INLINE void add_products(const Constants& t, int i, int begin, int end,
                                      const FloatVec (&scale)[kN], IntVec (&sum)[kN],
                                      IntVec (&lost)[kN]) {
    const FloatTag d;
    const float* HWY_RESTRICT a = t.a + i;
    const float* HWY_RESTRICT b = t.b;
    for (int k = begin; k < end; k += kUnroll) {
      HWY_UNROLL(4)
      for (int u = 0; u < kUnroll; ++u) {
        const FloatVec x = hn::Set(d, a[(k + u) * kBlockRows]);
        HWY_UNROLL(4)
        for (int j = 0; j < kN; ++j) {
          const FloatVec y = hn::Load(d, b + (k + u) * kBlockColumns + j * kFloatLanes);
          const FloatVec scaled = hn::Mul(hn::Mul(x, y), scale[j]);
          const IntVec term = truncate_to_int(scaled);
          sum[j] = hn::Add(sum[j], term);
          if (kEvents) note_lost(scaled, term, lost[j]);
        }
      }
    }
  }

  // total = sum + rest, or half of it where that does not fit 32 bits; then to odd, so that the bit
  // lost stays visible to the result's rounding, which keeps 24 of 31.
  HWY_INLINE void join(const IntVec (&sum)[kN], const IntVec (&rest)[kN], IntVec (&total)[kN],
                       Mask (&halved)[kN]) const {
    const FloatTag d;
    const IntTag di;
    IntVec overflow[kN], any = hn::Zero(di);
    HWY_UNROLL(4)
    for (int j = 0; j < kN; ++j) {
      total[j] = sum[j];
      halved[j] = hn::FirstN(d, 0);
      if (!kSplit) continue;
      total[j] = hn::Add(sum[j], rest[j]);
      overflow[j] = hn::And(hn::Xor(sum[j], total[j]), hn::Xor(rest[j], total[j]));
      any = hn::Or(any, overflow[j]);
    }
    if (!kSplit || HWY_LIKELY(hn::AllFalse(di, hn::Lt(any, hn::Zero(di))))) return;
    HWY_UNROLL(4)
    for (int j = 0; j < kN; ++j) {
      const IntVec one = hn::Set(di, 1);
      const IntVec carry = hn::And(hn::And(sum[j], rest[j]), one);
      const IntVec half =
          hn::Add(hn::Add(hn::ShiftRight<1>(sum[j]), hn::ShiftRight<1>(rest[j])), carry);
      const auto negative = hn::Lt(overflow[j], hn::Zero(di));
      total[j] = hn::IfThenElse(negative, hn::Or(half, hn::And(total[j], one)), total[j]);
      halved[j] = hn::RebindMask(d, negative);
    }
  }

  HWY_INLINE void store(const Constants& t, int i, int j, IntVec total, Mask halved, FloatVec unit,
                        IntVec lost) const {
    const FloatTag d;
    const IntTag di;
    float* HWY_RESTRICT c = t.c + i * kBlockColumns + j * kFloatLanes;
    FloatVec x = int_toward_zero(d, total);
    Mask cut = hn::FirstN(d, 0);
    if (kFp16 || kEvents) cut = hn::RebindMask(d, hn::Ne(truncate_to_int(x), total));
    // To odd, for FP16's rounding is still to come.
    if (kFp16) x = hn::IfThenElse(cut, hn::Or(x, hn::BitCast(d, hn::Set(di, 1))), x);
    if (kSplit) unit = hn::IfThenElse(halved, hn::Add(unit, unit), unit);
    x = hn::Mul(x, unit);

    FloatVec result = x;
    Mask stays = hn::FirstN(d, 0);
    if (kOutput == BlockOutput::kE8m13TowardZero) {
      constexpr int32_t kKept = -(1 << (kFloatFractionBits - 13));
      result = hn::BitCast(d, hn::And(hn::BitCast(di, x), hn::Set(di, kKept)));
    }
    if (kFp16) {
      result = ToFp16()(d, x);
      if (!keeps_negative_zero_) result = hn::Add(result, hn::Zero(d));
      // An infinite addend comes from an overflow in a block before, and stays.
      const FloatVec addend = hn::Load(d, c);
      stays = hn::Eq(hn::Abs(addend), infinity());
      result = hn::IfThenElse(stays, addend, result);
    }
    hn::Store(result, d, c);
    if (kEvents) note_events(i, j, x, result, cut, stays, lost);
  }

  static HWY_INLINE FloatVec infinity() {
    return hn::Set(FloatTag(), std::numeric_limits<float>::infinity());
  }

  HWY_INLINE void note_events(int i, int j, FloatVec x, FloatVec result, Mask cut, Mask stays,
                              IntVec lost) const {
    const FloatTag d;
    const IntTag di;
    const auto bit = [&](Mask mask, int32_t event) HWY_ATTR {
      return hn::IfThenElseZero(hn::RebindMask(di, mask), hn::Set(di, event));
    };
    // The sign of a zero is no bit that a term lost.
    const IntVec lost_bits = hn::And(lost, hn::Set(di, static_cast<int32_t>(kMagnitudeBits)));
    const Mask terms_cut = hn::RebindMask(d, hn::Ne(lost_bits, hn::Zero(di)));
    const Mask inexact = hn::AndNot(stays, hn::Or(hn::Or(terms_cut, cut), hn::Ne(result, x)));
    const Mask to_zero = hn::And(inexact, hn::Eq(result, hn::Zero(d)));
    const Mask overflow = hn::AndNot(stays, hn::Eq(hn::Abs(result), infinity()));
    const IntVec seen = hn::Or(hn::Or(bit(inexact, kStepInexact), bit(to_zero, kStepToZero)),
                               bit(overflow, kStepToInfinity | kStepInexact));
    int32_t* events = events_ + i * kBlockColumns + j * kFloatLanes;
    hn::Store(hn::Or(hn::Load(di, events), seen), di, events);
  }

  const BlockSide<kBlockRows>& a_;
  const BlockSide<kBlockColumns>& b_;
  const int count_, first_count_;  // first_count_: of the first of the two sums
  const int rows_, fraction_bits_, lowest_common_;
  const bool keeps_negative_zero_;
  float* const c_;
  int32_t* const events_;
  alignas(64) uint32_t common_[kBlockRows * kFloatLanes];
};

// Requires: the block is calm, the exponent bytes are made.
template <BlockOutput kOutput, bool kSplit, bool kEvents>
void run_float_block(const BlockTask& t) {
  if (t.columns <= kFloatLanes) return FloatBlock<kOutput, kSplit, kEvents, 1>(t).run();
  if (t.columns <= 2 * kFloatLanes) return FloatBlock<kOutput, kSplit, kEvents, 2>(t).run();
  FloatBlock<kOutput, kSplit, kEvents, kBlockVectors>(t).run();
}

#endif  // LOCKSTEP_SIMD_TARGET
}  // namespace HWY_NAMESPACE
}  // namespace lockstep
HWY_AFTER_NAMESPACE();
#endif
