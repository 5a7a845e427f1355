// Polynomials for erf (emulation/math/functions-inl.h). Written by
// emulation/math/erf_coefficients.py.
#pragma once

#include <array>

namespace lockstep {

// exp(x^2) erfc(x) (x + 4) on [1, 4], lowest power of u first; error 2^-33.05 relative.
inline constexpr std::array<double, 9> kErfcFloat = {
    0x1.79efe4637fec4p+0,  0x1.f4e71bef3125cp-2,  0x1.13cfa97c1f110p-3,
    0x1.fa166a249f507p-6,  0x1.7ffeedba5922dp-8,  0x1.d817b7043d398p-11,
    0x1.c0fe8865848a3p-14, 0x1.22eda97461813p-17, 0x1.21ceac72e0498p-22};

// exp(x^2) erfc(x) (x + 4) on [1, 6], lowest power of u first; error 2^-67.44 relative.
inline constexpr std::array<double, 19> kErfcDouble = {
    0x1.53c028dda61bap+0,  0x1.171dcd28caf8dp-1,   0x1.86f1c496a2e90p-3,   0x1.d21083c26aae0p-5,
    0x1.d4b9ab77c6b78p-7,  0x1.85fff7a5a8314p-9,   0x1.0207f587c5a3bp-11,  0x1.ef1fda85e5975p-15,
    0x1.ea067065f7256p-19, -0x1.199f1df2c35a3p-22, -0x1.6a6bab5a55d06p-24, -0x1.51d214adfe84ep-28,
    0x1.fc85f809d9896p-31, 0x1.5113f32e9270dp-33,  -0x1.f6f4d8f9b0c87p-38, -0x1.c1f186fa79af5p-39,
    0x1.84007d1468741p-46, 0x1.093af35b3d947p-44,  0x1.155c55affbb83p-51};

}  // namespace lockstep
