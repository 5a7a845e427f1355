"""Prints emulation/math/trigonometric_tables.h: digits of 2 / pi, pi / 2 and arctangents, from integers alone.

python emulation/math/trigonometric_tables.py > emulation/math/trigonometric_tables.h
"""

BITS = 1400
ONE = 1 << BITS


def arctangent_of(numerator, denominator):
    """atan(numerator / denominator) in units of 2^-BITS, by its series; numerator < denominator."""
    power = ONE * numerator // denominator
    total, square, i = 0, (numerator * numerator, denominator * denominator), 0
    while power:
        total += (-1) ** i * (power // (2 * i + 1))
        power = power * square[0] // square[1]
        i += 1
    return total


PI = 4 * (4 * arctangent_of(1, 5) - arctangent_of(1, 239))  # Machin's formula


def two_doubles(value):
    """value / 2^BITS as the nearest double and the nearest double of the rest."""
    high = value / ONE
    numerator, denominator = high.as_integer_ratio()
    return high, (value - numerator * ONE // denominator) / ONE


def words():
    """One word of zeros, then the bits of 2 / pi after the binary point."""
    fraction = 2 * ONE * ONE // PI
    count = BITS // 64
    return [0] + [fraction >> (BITS - 64 * (i + 1)) & (1 << 64) - 1 for i in range(count - 1)]


def table(name, kind, texts, columns):
    lines = [", ".join(texts[i : i + columns]) for i in range(0, len(texts), columns)]
    return f"inline constexpr std::array<{kind}, {len(texts)}> {name} = {{\n    " + ",\n    ".join(lines) + "};\n"


arctangents = [(0.0, 0.0)] + [two_doubles(arctangent_of(k, 8)) for k in range(1, 8)] + [two_doubles(PI // 4)]
half_pi = two_doubles(PI // 2)
print(
    "// Constants of sin, cos and atan (emulation/math/trigonometry.h). Written by\n"
    "// emulation/math/trigonometric_tables.py.\n#pragma once\n\n#include <array>\n#include <cstdint>\n\n"
    "namespace lockstep {\n\n// 2 / pi: 64 zeros, then its bits after the binary point.\n"
    + table("kTwoOverPi", "uint64_t", [f"0x{word:016x}" for word in words()], 4)
    + "\n// pi / 2 = high + low.\n"
    f"inline constexpr double kHalfPiHigh = {half_pi[0].hex()}, kHalfPiLow = {half_pi[1].hex()};\n"
    "\n// atan(k / 8), k = 0 .. 8, and what the doubles leave out.\n"
    + table("kArctangent", "double", [high.hex() for high, _ in arctangents], 3)
    + table("kArctangentRest", "double", [low.hex() for _, low in arctangents], 3)
    + "\n}  // namespace lockstep"
)
