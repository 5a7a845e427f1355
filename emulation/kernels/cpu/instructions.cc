// Each function is compiled for its own instruction set, independently of the rest of the program.
// Ragged ends are padded or masked with zeros.
#include "emulation/kernels/cpu/instructions.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "emulation/kernels/cpu/intrinsics.h"
#include "emulation/kernels/cpu/tile.h"

namespace lockstep::cpu {

namespace {

#define LOCKSTEP_TARGET_F16C __attribute__((target("avx2,f16c")))
#define LOCKSTEP_TARGET_FMA __attribute__((target("avx2,fma")))
#define LOCKSTEP_TARGET_BF16 __attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16")))
#define LOCKSTEP_TARGET_FP16 __attribute__((target("avx512f,avx512bw,avx512vl,avx512fp16")))

constexpr int64_t kBytes256 = 32, kBytes512 = 64;

// The i-th operand's vector at `at`: in place, or its ragged end padded with zeros.
template <int64_t kBytes, typename T>
class Padded {
 public:
  static constexpr int64_t kLanes = kBytes / static_cast<int64_t>(sizeof(T));
  const T* input(const T* x, int64_t lanes) {
    if (lanes == kLanes) return x;
    std::memset(values_, 0, sizeof values_);
    std::memcpy(values_, x, static_cast<size_t>(lanes) * sizeof(T));
    return values_;
  }
  T* output(T* y, int64_t lanes) { return lanes == kLanes ? y : values_; }
  void finish(T* y, int64_t lanes) const {
    if (lanes != kLanes) std::memcpy(y, values_, static_cast<size_t>(lanes) * sizeof(T));
  }

 private:
  T values_[kLanes];
};

template <int kMode>
LOCKSTEP_TARGET_F16C void to_half(const float* x, uint16_t* y, int64_t count) {
  constexpr int64_t kLanes = 8;
  for (int64_t i = 0; i < count; i += kLanes) {
    const int64_t lanes = std::min(kLanes, count - i);
    Padded<kBytes256, float> in;
    Padded<kBytes256 / 2, uint16_t> out;
    const __m256 v = _mm256_loadu_ps(in.input(x + i, lanes));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out.output(y + i, lanes)),
                     _mm256_cvtps_ph(v, kMode));
    out.finish(y + i, lanes);
  }
}

}  // namespace

void vcvtps2ph(const float* x, uint16_t* y, int64_t count, Rounding rounding) {
  switch (rounding) {
    case Rounding::kNearestEven:
      return to_half<_MM_FROUND_TO_NEAREST_INT>(x, y, count);
    case Rounding::kDown:
      return to_half<_MM_FROUND_TO_NEG_INF>(x, y, count);
    case Rounding::kUp:
      return to_half<_MM_FROUND_TO_POS_INF>(x, y, count);
    case Rounding::kTowardZero:
      return to_half<_MM_FROUND_TO_ZERO>(x, y, count);
    default:
      throw std::logic_error("VCVTPS2PH: does not have this rounding");
  }
}

LOCKSTEP_TARGET_F16C void vcvtph2ps(const uint16_t* x, float* y, int64_t count) {
  constexpr int64_t kLanes = 8;
  for (int64_t i = 0; i < count; i += kLanes) {
    const int64_t lanes = std::min(kLanes, count - i);
    Padded<kBytes256 / 2, uint16_t> in;
    Padded<kBytes256, float> out;
    const auto* half = reinterpret_cast<const __m128i*>(in.input(x + i, lanes));
    _mm256_storeu_ps(out.output(y + i, lanes), _mm256_cvtph_ps(_mm_loadu_si128(half)));
    out.finish(y + i, lanes);
  }
}

LOCKSTEP_TARGET_FMA void vfmadd231ps(const float* a, const float* b, const float* c, float* y,
                                     int64_t count) {
  constexpr int64_t kLanes = 8;
  for (int64_t i = 0; i < count; i += kLanes) {
    const int64_t lanes = std::min(kLanes, count - i);
    Padded<kBytes256, float> in[3], out;
    const __m256 va = _mm256_loadu_ps(in[0].input(a + i, lanes));
    const __m256 vb = _mm256_loadu_ps(in[1].input(b + i, lanes));
    const __m256 vc = _mm256_loadu_ps(in[2].input(c + i, lanes));
    _mm256_storeu_ps(out.output(y + i, lanes), _mm256_fmadd_ps(va, vb, vc));
    out.finish(y + i, lanes);
  }
}

LOCKSTEP_TARGET_BF16 void vcvtneps2bf16(const float* x, uint16_t* y, int64_t count) {
  constexpr int64_t kLanes = 16;
  for (int64_t i = 0; i < count; i += kLanes) {
    const int64_t lanes = std::min(kLanes, count - i);
    const auto mask = static_cast<__mmask16>((1u << lanes) - 1);
    const __m512 v = _mm512_maskz_loadu_ps(mask, x + i);
    _mm256_mask_storeu_epi16(y + i, mask, reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(v)));
  }
}

LOCKSTEP_TARGET_BF16 void vcvtne2ps2bf16(const float* x, uint16_t* y, int64_t count) {
  constexpr int64_t kHalf = 16, kLanes = 32;
  for (int64_t i = 0; i < count; i += kLanes) {
    const int64_t lanes = std::min(kLanes, count - i);
    const auto mask = static_cast<__mmask32>((uint64_t{1} << lanes) - 1);
    const __m512 low = _mm512_maskz_loadu_ps(static_cast<__mmask16>(mask), x + i);
    const __m512 high = _mm512_maskz_loadu_ps(static_cast<__mmask16>(mask >> kHalf), x + i + kHalf);
    _mm512_mask_storeu_epi16(y + i, mask,
                             reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low)));
  }
}

LOCKSTEP_TARGET_BF16 void vdpbf16ps(const uint32_t* a, const uint32_t* b, const float* c, float* y,
                                    int64_t count) {
  constexpr int64_t kLanes = 16;
  for (int64_t i = 0; i < count; i += kLanes) {
    const int64_t lanes = std::min(kLanes, count - i);
    const auto mask = static_cast<__mmask16>((1u << lanes) - 1);
    const auto va = reinterpret_cast<__m512bh>(_mm512_maskz_loadu_epi32(mask, a + i));
    const auto vb = reinterpret_cast<__m512bh>(_mm512_maskz_loadu_epi32(mask, b + i));
    const __m512 vc = _mm512_maskz_loadu_ps(mask, c + i);
    _mm512_mask_storeu_ps(y + i, mask, _mm512_dpbf16_ps(vc, va, vb));
  }
}

namespace {

enum class HalfOp { kFma, kMultiply, kAdd };

// y = op(a, b, c); only some operations read c.
template <HalfOp kOp>
LOCKSTEP_TARGET_FP16 void half_arithmetic(const uint16_t* a, const uint16_t* b, const uint16_t* c,
                                          uint16_t* y, int64_t count) {
  constexpr int64_t kLanes = 32;
  for (int64_t i = 0; i < count; i += kLanes) {
    const int64_t lanes = std::min(kLanes, count - i);
    const auto mask = static_cast<__mmask32>((uint64_t{1} << lanes) - 1);
    const auto va = reinterpret_cast<__m512h>(_mm512_maskz_loadu_epi16(mask, a + i));
    const auto vb = reinterpret_cast<__m512h>(_mm512_maskz_loadu_epi16(mask, b + i));
    __m512h result;
    if constexpr (kOp == HalfOp::kFma) {
      const auto vc = reinterpret_cast<__m512h>(_mm512_maskz_loadu_epi16(mask, c + i));
      result = _mm512_fmadd_ph(va, vb, vc);
    } else if constexpr (kOp == HalfOp::kMultiply) {
      result = _mm512_mul_ph(va, vb);
    } else {
      result = _mm512_add_ph(va, vb);
    }
    _mm512_mask_storeu_epi16(y + i, mask, reinterpret_cast<__m512i>(result));
  }
}

}  // namespace

void vfmadd231ph(const uint16_t* a, const uint16_t* b, const uint16_t* c, uint16_t* y,
                 int64_t count) {
  half_arithmetic<HalfOp::kFma>(a, b, c, y, count);
}
void vmulph(const uint16_t* a, const uint16_t* b, uint16_t* y, int64_t count) {
  half_arithmetic<HalfOp::kMultiply>(a, b, nullptr, y, count);
}
void vaddph(const uint16_t* a, const uint16_t* b, uint16_t* y, int64_t count) {
  half_arithmetic<HalfOp::kAdd>(a, b, nullptr, y, count);
}

namespace {

// One output: row 0 and column 0 of the tiles. The second factor's tile has a row per pair.
template <bool kIsFp16>
void tile_dots(const uint16_t* a, const uint16_t* b, const float* c, float* y, int pairs,
               int64_t count) {
  constexpr int kPairBytes = 4;
  const TileShape shape{.rows = 1, .columns = 1, .pairs = pairs};
  const TileSession session(shape);
  for (int64_t i = 0; i < count; ++i, a += 2 * pairs, b += 2 * pairs) {
    float sum = c[i];
    HardwareTiles::load<kTileSum>(&sum, sizeof sum);
    HardwareTiles::load<kTileA>(a, pairs * kPairBytes);
    HardwareTiles::load<kTileB>(b, kPairBytes);
    if constexpr (kIsFp16) {
      HardwareTiles::dot_fp16();
    } else {
      HardwareTiles::dot_bf16();
    }
    HardwareTiles::store<kTileSum>(&sum, sizeof sum);
    y[i] = sum;
  }
}

}  // namespace

void tdpbf16ps(const uint16_t* a, const uint16_t* b, const float* c, float* y, int pairs,
               int64_t count) {
  tile_dots<false>(a, b, c, y, pairs, count);
}
void tdpfp16ps(const uint16_t* a, const uint16_t* b, const float* c, float* y, int pairs,
               int64_t count) {
  tile_dots<true>(a, b, c, y, pairs, count);
}

}  // namespace lockstep::cpu
