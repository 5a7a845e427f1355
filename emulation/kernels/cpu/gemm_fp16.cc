// VFMADD231PH: FP16 products and sums on the CPU's own instructions.
#define LOCKSTEP_HALF_TARGET \
  __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512fp16,f16c")))

#include "emulation/kernels/cpu/gemm.h"
#include "emulation/kernels/cpu/gemm_fp16_tile.h"
#include "emulation/kernels/cpu/intrinsics.h"

namespace lockstep {
namespace {

#define LOCKSTEP_LANES LOCKSTEP_HALF_TARGET __attribute__((always_inline)) static inline

struct HardwareHalf {
  using Sums = __m512h;
  static constexpr int kFloatLanes = 16;

  LOCKSTEP_LANES uint16_t code(float x) { return _cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT); }
  LOCKSTEP_LANES Sums load(const uint16_t* words) {
    return reinterpret_cast<Sums>(_mm512_loadu_si512(words));
  }
  LOCKSTEP_LANES Sums broadcast(uint16_t word) {
    return reinterpret_cast<Sums>(_mm512_set1_epi16(static_cast<short>(word)));
  }

  LOCKSTEP_LANES Sums load_sums(const float* c, uint32_t mask) {
    const __m512 low = _mm512_maskz_loadu_ps(static_cast<__mmask16>(mask), c);
    const __m512 high =
        _mm512_maskz_loadu_ps(static_cast<__mmask16>(mask >> kFloatLanes), c + kFloatLanes);
    const __m256i halves[] = {_mm512_cvtps_ph(low, _MM_FROUND_TO_NEAREST_INT),
                              _mm512_cvtps_ph(high, _MM_FROUND_TO_NEAREST_INT)};
    return reinterpret_cast<Sums>(
        _mm512_inserti64x4(_mm512_castsi256_si512(halves[0]), halves[1], 1));
  }
  LOCKSTEP_LANES void store_sums(Sums sum, float* c, uint32_t mask) {
    const __m512 nan = _mm512_castsi512_ps(_mm512_set1_epi32(0x7fc00000));
    const auto bits = reinterpret_cast<__m512i>(sum);
    const __m256i halves[] = {_mm512_castsi512_si256(bits), _mm512_extracti64x4_epi64(bits, 1)};
    for (int i = 0; i < 2; ++i) {
      const __m512 x = _mm512_cvtph_ps(halves[i]);
      const __mmask16 unordered = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
      const auto stored = static_cast<__mmask16>(mask >> (i * kFloatLanes));
      _mm512_mask_storeu_ps(c + i * kFloatLanes, stored, _mm512_mask_mov_ps(x, unordered, nan));
    }
  }

  LOCKSTEP_LANES Sums fma(Sums x, Sums y, Sums acc) { return _mm512_fmadd_ph(x, y, acc); }
  LOCKSTEP_LANES Sums fma_down(Sums x, Sums y, Sums acc) {
    return _mm512_fmadd_round_ph(x, y, acc, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
  }
  LOCKSTEP_LANES Sums fma_up(Sums x, Sums y, Sums acc) {
    return _mm512_fmadd_round_ph(x, y, acc, _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC);
  }

  LOCKSTEP_LANES uint32_t not_finite(Sums x) {
    constexpr int kQuietNan = 0x01, kInfinities = 0x18, kSignallingNan = 0x80;
    return _mm512_fpclass_ph_mask(x, kQuietNan | kInfinities | kSignallingNan);
  }
  LOCKSTEP_LANES uint32_t is_nan(Sums x) { return _mm512_cmp_ph_mask(x, x, _CMP_UNORD_Q); }
  LOCKSTEP_LANES uint32_t is_zero(Sums x) {
    return _mm512_cmp_ph_mask(x, _mm512_setzero_ph(), _CMP_EQ_OQ);
  }
  LOCKSTEP_LANES uint32_t differ(Sums x, Sums y) { return _mm512_cmp_ph_mask(x, y, _CMP_NEQ_OQ); }
};

#undef LOCKSTEP_LANES

}  // namespace

void avx512_fp16_gemm(const GemmArgs<float>& args) {
  UnitGemm<Fp16Tile<HardwareHalf>>(args).run();
}

}  // namespace lockstep
