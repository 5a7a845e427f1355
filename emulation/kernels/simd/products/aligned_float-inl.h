// A tensor core's block in float and 32-bit integer lanes: the fast form, for calm blocks
// (emulation/kernels/simd/products/aligned_rules.h). One lane is one output.
//
//   E       bytes: the largest sum of the factors' exponents, all columns at a time; then c's
//   term    int(a * b * 2^(F - E)), which cuts toward zero; product and scaling are exact
//   sum     32-bit integers; where a whole block could overflow them, two halves that join last
//   result  float(sum), cut toward zero or to odd, times 2^(E - F), which is exact
//
// Included once per instruction set.
#if defined(LOCKSTEP_ALIGNED_FLOAT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LOCKSTEP_ALIGNED_FLOAT_INL_H_
#undef LOCKSTEP_ALIGNED_FLOAT_INL_H_
#else
#define LOCKSTEP_ALIGNED_FLOAT_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>
#include <limits>

#include "emulation/accumulator/dot.h"
#include "emulation/kernels/simd/products/aligned_operands-inl.h"
#include "emulation/kernels/simd/products/aligned_rules.h"
#include "emulation/kernels/simd/rounding/narrow-inl.h"
#include "emulation/kernels/simd/targets.h"
#include "emulation/number/number_format.h"

HWY_BEFORE_NAMESPACE();
namespace lockstep {
namespace HWY_NAMESPACE {
#if LOCKSTEP_SIMD_TARGET
namespace hn = hwy::HWY_NAMESPACE;

using IntTag = hn::RebindToSigned<FloatTag>;
using IntVec = hn::Vec<IntTag>;

inline constexpr int kFloatLanes = static_cast<int>(hn::MaxLanes(FloatTag()));
// A row of exponent bytes fills one register: 64 columns with AVX-512.
inline constexpr int kBlockVectors = kByteVectors;
inline constexpr int kBlockColumns = kBlockVectors * kFloatLanes;
inline constexpr int kBlockRows = 64;

// One block of a tile: rows x columns outputs, c[i * kBlockColumns + j], which hold the addends
// and receive the results. `events` likewise, or null.
struct BlockTask {
  const BlockRules* rules;
  const BlockSide<kBlockRows>* a;
  const BlockSide<kBlockColumns>* b;
  int first;  // line of the first product in a and b
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
  // Negative where `nearest` is greater; 2^31 wraps to the most negative number, which also works.
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
        first_(task.first),
        count_(task.count),
        first_count_(kSplit ? std::min(task.count, task.rules->spec.length / 2) : task.count),
        rows_(task.rows),
        fraction_bits_(task.rules->spec.fraction_bits),
        lowest_common_(std::max(CalmBlock::kLowestCommon, task.rules->spec.exponent_floor)),
        keeps_negative_zero_(task.rules->spec.keeps_negative_zero),
        c_(task.c),
        events_(reinterpret_cast<int32_t*>(task.events)) {}

  HWY_NOINLINE void run() {
    for (int i = 0; i < rows_; i += kRowsAtOnce) find_common_exponents(i);
    const Constants constants(*this);
    const int rows = rows_;
    for (int i = 0; i < rows; ++i) {
      const Aligned aligned = align(constants, i);
      if (!kEvents) {
        row<false>(constants, i, aligned);
      } else if (!all_inexact(constants, i) || !row<false>(constants, i, aligned)) {
        row<true>(constants, i, aligned);
      }
    }
  }

 private:
  static constexpr int kRowsAtOnce = 4;
  static constexpr bool kFp16 = kOutput == BlockOutput::kFp16NearestEven;
  using Mask = hn::Mask<FloatTag>;

  // Kept in registers over all rows: the compiler must assume that stores of sums change members.
  struct Constants {
    explicit Constants(const FloatBlock& block)
        : a(block.a_.values + block.first_ * kBlockRows),
          b(block.b_.values + block.first_ * kBlockColumns),
          common(block.common_),
          c(block.c_),
          events(block.events_),
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
    int32_t* events;
    int count, first_count;
    IntVec up, down, field;
  };

  // Biased common exponents of the products of rows i to i + 3, in the places of b's bytes:
  // the largest of a's + b's. A saturating sum with kNoExponentByte is at most -128 + 63.
  HWY_INLINE void find_common_exponents(int i) {
    const hn::ScalableTag<int8_t> d;
    using V = hn::Vec<decltype(d)>;
    static_assert(-128 + CalmBlock::kHighestFactor < CalmBlock::kLowestCommon);
    V largest[kRowsAtOnce];
    HWY_UNROLL(4)
    for (int r = 0; r < kRowsAtOnce; ++r) {
      largest[r] = hn::Set(d, static_cast<int8_t>(lowest_common_));
    }
    // The bytes of rows i to i + 3 are in neighbouring lanes.
    using Side = BlockSide<kBlockRows>;
    static_assert(Side::kLanes % kRowsAtOnce == 0);
    const auto* HWY_RESTRICT a =
        reinterpret_cast<const int8_t*>(a_.bytes) + first_ * kBlockRows + Side::byte_place(i);
    const auto* HWY_RESTRICT b = reinterpret_cast<const int8_t*>(b_.bytes) + first_ * kBlockColumns;
    for (int k = 0; k < count_; ++k) {
      const V y = hn::Load(d, b + k * kBlockColumns);
      HWY_UNROLL(4)
      for (int r = 0; r < kRowsAtOnce; ++r) {
        largest[r] = hn::Max(largest[r],
                             hn::SaturatedAdd(hn::Set(d, a[k * kBlockRows + r * kByteVectors]), y));
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

  // Events stick: if every output of the row is already inexact, no check is needed.
  static HWY_INLINE bool all_inexact(const Constants& t, int i) {
    const IntTag di;
    const int32_t* events = t.events + i * kBlockColumns;
    IntVec seen = hn::Load(di, events);
    for (int j = 1; j < kN; ++j) seen = hn::And(seen, hn::Load(di, events + j * kFloatLanes));
    return hn::AllTrue(di, hn::TestBit(seen, hn::Set(di, kStepInexact)));
  }

  // The common exponents of a row, as exponent fields, and 2^(F - E).
  struct Aligned {
    IntVec common[kN];
    FloatVec scale[kN];
  };

  static HWY_INLINE Aligned align(const Constants& t, int i) {
    const FloatTag d;
    const IntTag di;
    const IntVec bytes =
        hn::BitCast(di, hn::Load(hn::RebindToUnsigned<IntTag>(), t.common + i * kFloatLanes));
    const IntVec of_products[kBlockVectors] = {exponent_field<0>(bytes), exponent_field<1>(bytes),
                                               exponent_field<2>(bytes), exponent_field<3>(bytes)};
    Aligned x;
    HWY_UNROLL(4)
    for (int j = 0; j < kN; ++j) {
      const FloatVec addend = hn::Load(d, t.c + i * kBlockColumns + j * kFloatLanes);
      const IntVec own = hn::And(hn::BitCast(di, addend), t.field);
      IntVec common = hn::Max(hn::And(of_products[j], t.field), own);
      if (kFp16) {
        // Subnormals of FP16 have the exponent emin.
        const IntVec emin = hn::Set(di, (lockstep::kFp16.emin + kFloatBias) << kFloatFractionBits);
        common = hn::IfThenElse(hn::Ne(own, hn::Zero(di)), hn::Max(common, emin), common);
      }
      x.common[j] = common;
      x.scale[j] = hn::BitCast(d, hn::Sub(t.up, common));
    }
    return x;
  }

  // kNotes: finds out what was cut off. Without it: false if some output is zero and so needs to
  // know; then nothing was stored.
  template <bool kNotes>
  HWY_INLINE bool row(const Constants& t, int i, const Aligned& aligned) const {
    const FloatTag d;
    const IntTag di;
    float* HWY_RESTRICT c = t.c + i * kBlockColumns;
    IntVec sum[kN], rest[kN], lost[kN];
    HWY_UNROLL(4)
    for (int j = 0; j < kN; ++j) {
      const FloatVec scaled = hn::Mul(hn::Load(d, c + j * kFloatLanes), aligned.scale[j]);
      sum[j] = truncate_to_int(scaled);
      rest[j] = lost[j] = hn::Zero(di);
      if (kNotes) note_lost(scaled, sum[j], lost[j]);
    }
    add_products<kNotes>(t, i, 0, t.first_count, aligned.scale, sum, lost);
    if (kSplit) add_products<kNotes>(t, i, t.first_count, t.count, aligned.scale, rest, lost);

    IntVec total[kN];
    Mask halved[kN];
    join(sum, rest, total, halved);
    Rounded rounded[kN];
    Mask zero = hn::FirstN(d, 0);
    HWY_UNROLL(4)
    for (int j = 0; j < kN; ++j) {
      FloatVec unit = hn::BitCast(d, hn::Sub(aligned.common[j], t.down));
      if (kSplit) unit = hn::IfThenElse(halved[j], hn::Add(unit, unit), unit);
      rounded[j] = round(hn::Load(d, c + j * kFloatLanes), total[j], unit);
      if (kEvents && !kNotes) zero = hn::Or(zero, hn::Eq(rounded[j].result, hn::Zero(d)));
    }
    if (kEvents && !kNotes && !hn::AllFalse(d, zero)) return false;
    HWY_UNROLL(4)
    for (int j = 0; j < kN; ++j) {
      hn::Store(rounded[j].result, d, c + j * kFloatLanes);
      if (kEvents)
        note_events<kNotes>(rounded[j], lost[j], t.events + i * kBlockColumns + j * kFloatLanes);
    }
    return true;
  }

  static HWY_INLINE void note_lost(FloatVec scaled, IntVec kept, IntVec& lost) {
    const IntTag di;
    const auto back = hn::BitCast(di, hn::ConvertTo(FloatTag(), kept));
    lost = hn::Or(lost, hn::Xor(back, hn::BitCast(di, scaled)));
  }

  template <bool kNotes>
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
          if (kNotes) note_lost(scaled, term, lost[j]);
        }
      }
    }
  }

  // total = sum + rest, or half of it where that does not fit 32 bits; then to odd, so that the
  // lost bit still affects the result's rounding, which keeps 24 of 31.
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

  // The output of the block: `result` is `exact` rounded; `exact` is total * unit cut to float's 24
  // bits.
  struct Rounded {
    FloatVec result, exact;
    Mask cut;    // total had more bits
    Mask stays;  // an infinite addend, from an overflow in a block before
  };

  HWY_INLINE Rounded round(FloatVec addend, IntVec total, FloatVec unit) const {
    const FloatTag d;
    const IntTag di;
    Rounded r;
    r.cut = r.stays = hn::FirstN(d, 0);
    FloatVec x = int_toward_zero(d, total);
    if (kFp16 || kEvents) r.cut = hn::RebindMask(d, hn::Ne(truncate_to_int(x), total));
    // To odd, because FP16's rounding comes later.
    if (kFp16) x = hn::IfThenElse(r.cut, hn::Or(x, hn::BitCast(d, hn::Set(di, 1))), x);
    r.result = r.exact = hn::Mul(x, unit);
    if (kOutput == BlockOutput::kE8m13TowardZero) {
      constexpr int32_t kKept = -(1 << (kFloatFractionBits - 13));
      r.result = hn::BitCast(d, hn::And(hn::BitCast(di, r.exact), hn::Set(di, kKept)));
    }
    if (kFp16) {
      r.result = ToFp16()(d, r.exact);
      if (!keeps_negative_zero_) r.result = hn::Add(r.result, hn::Zero(d));
      r.stays = hn::Eq(hn::Abs(addend), infinity());
      r.result = hn::IfThenElse(r.stays, addend, r.result);
    }
    return r;
  }

  static HWY_INLINE FloatVec infinity() {
    return hn::Set(FloatTag(), std::numeric_limits<float>::infinity());
  }

  template <bool kNotes>
  static HWY_INLINE void note_events(const Rounded& r, IntVec lost, int32_t* events) {
    const FloatTag d;
    const IntTag di;
    if (!kNotes && !kFp16) return;
    const auto bit = [&](Mask mask, int32_t event) HWY_ATTR {
      return hn::IfThenElseZero(hn::RebindMask(di, mask), hn::Set(di, event));
    };
    const Mask overflow = hn::AndNot(r.stays, hn::Eq(hn::Abs(r.result), infinity()));
    IntVec seen = bit(overflow, kStepToInfinity | kStepInexact);
    if (kNotes) {
      // The sign of a zero is not a bit that a term lost.
      const IntVec lost_bits = hn::And(lost, hn::Set(di, static_cast<int32_t>(kMagnitudeBits)));
      const Mask terms_cut = hn::RebindMask(d, hn::Ne(lost_bits, hn::Zero(di)));
      const Mask rounded = hn::Or(r.cut, hn::Ne(r.result, r.exact));
      const Mask inexact = hn::AndNot(r.stays, hn::Or(terms_cut, rounded));
      const Mask to_zero = hn::And(inexact, hn::Eq(r.result, hn::Zero(d)));
      seen = hn::Or(seen, hn::Or(bit(inexact, kStepInexact), bit(to_zero, kStepToZero)));
    }
    hn::Store(hn::Or(hn::Load(di, events), seen), di, events);
  }

  const BlockSide<kBlockRows>& a_;
  const BlockSide<kBlockColumns>& b_;
  const int first_, count_, first_count_;  // first_count_: of the first of the two sums
  const int rows_, fraction_bits_, lowest_common_;
  const bool keeps_negative_zero_;
  float* const c_;
  int32_t* const events_;
  alignas(64) uint32_t common_[kBlockRows * kFloatLanes];
};

// Requires: the block is calm, the exponent bytes are computed.
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
