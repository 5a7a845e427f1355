// Constants of sin, cos and atan (emulation/math/trigonometry.h). Written by
// emulation/math/trigonometric_tables.py.
#pragma once

#include <array>
#include <cstdint>

namespace lockstep {

// 2 / pi: 64 zeros, then its bits after the binary point.
inline constexpr std::array<uint64_t, 21> kTwoOverPi = {
    0x0000000000000000, 0xa2f9836e4e441529, 0xfc2757d1f534ddc0, 0xdb6295993c439041,
    0xfe5163abdebbc561, 0xb7246e3a424dd2e0, 0x06492eea09d1921c, 0xfe1deb1cb129a73e,
    0xe88235f52ebb4484, 0xe99c7026b45f7e41, 0x3991d639835339f4, 0x9c845f8bbdf9283b,
    0x1ff897ffde05980f, 0xef2f118b5a0a6d1f, 0x6d367ecf27cb09b7, 0x4f463f669e5fea2d,
    0x7527bac7ebe5f17b, 0x3d0739f78a5292ea, 0x6bfb5fb11f8d5d08, 0x56033046fc7b6bab,
    0xf0cfbc209af4361d};

// pi / 2 = high + low.
inline constexpr double kHalfPiHigh = 0x1.921fb54442d18p+0, kHalfPiLow = 0x1.1a62633145c07p-54;

// atan(k / 8), k = 0 .. 8, and what the doubles leave out.
inline constexpr std::array<double, 9> kArctangent = {0x0.0p+0,
                                                      0x1.fd5ba9aac2f6ep-4,
                                                      0x1.f5b75f92c80ddp-3,
                                                      0x1.6f61941e4def1p-2,
                                                      0x1.dac670561bb4fp-2,
                                                      0x1.1e00babdefeb4p-1,
                                                      0x1.4978fa3269ee1p-1,
                                                      0x1.700a7c5784634p-1,
                                                      0x1.921fb54442d18p-1};
inline constexpr std::array<double, 9> kArctangentRest = {0x0.0p+0,
                                                          -0x1.cd37686760c17p-59,
                                                          0x1.8ab6e3cf7afbdp-57,
                                                          -0x1.c63aae6f6e918p-56,
                                                          0x1.a2b7f222f65e2p-56,
                                                          -0x1.928df287a668fp-58,
                                                          0x1.2419a87f2a458p-56,
                                                          -0x1.8c34d25aadef6p-56,
                                                          0x1.1a62633145c07p-55};

}  // namespace lockstep
