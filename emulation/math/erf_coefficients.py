"""Prints emulation/math/erf_coefficients.h: polynomials for exp(x^2) erfc(x) (x + 4), interpolated at the
Chebyshev nodes of u = 2 (t - t1) / (t0 - t1) - 1, t = 4 / (x + 4), in 60-digit arithmetic.

    python emulation/math/erf_coefficients.py > emulation/math/erf_coefficients.h       (needs mpmath)
"""

import mpmath as mp

mp.mp.dps = 60
SHIFT = mp.mpf(4)


def monomials(low, high, degree):
    """Coefficients in u, lowest first, and the largest relative error on [low, high]."""
    t_low, t_high = SHIFT / (low + SHIFT), SHIFT / (high + SHIFT)

    def function(u):
        x = SHIFT / (t_high + (t_low - t_high) * (u + 1) / 2) - SHIFT
        return mp.erfc(x) * mp.exp(x * x) * (x + SHIFT)

    n = degree + 1
    angles = [mp.pi * (2 * k + 1) / (2 * n) for k in range(n)]
    values = [function(mp.cos(angle)) for angle in angles]
    previous, current = [mp.mpf(1)], [mp.mpf(0), mp.mpf(1)]  # T0, T1
    total = [mp.mpf(0)] * n
    for j in range(n):
        weight = sum(v * mp.cos(j * a) for v, a in zip(values, angles)) * (1 if j == 0 else 2) / n
        for i, c in enumerate(previous):
            total[i] += weight * c
        following = [mp.mpf(0)] + [2 * c for c in current]
        for i, c in enumerate(previous):
            following[i] -= c
        previous, current = current, following
    error = max(abs(mp.polyval(total[::-1], u) / function(u) - 1) for u in mp.linspace(-1, 1, 101))
    return total, error


def text(value):
    """The nearest double as a hexadecimal constant."""
    return float(value).hex()


print("// Polynomials for erf (emulation/math/functions-inl.h). Written by emulation/math/erf_coefficients.py.")
print("#pragma once\n\n#include <array>\n\nnamespace lockstep {\n")
for name, low, high, degree in (("Float", 1, 4, 8), ("Double", 1, 6, 18)):
    coefficients, error = monomials(mp.mpf(low), mp.mpf(high), degree)
    print(
        f"// exp(x^2) erfc(x) (x + 4) on [{low}, {high}], lowest power of u first; "
        f"error 2^{mp.nstr(mp.log(error, 2), 4)} relative."
    )
    print(f"inline constexpr std::array<double, {degree + 1}> kErfc{name} = {{")
    print(",\n".join("    " + text(c) for c in coefficients) + "};\n")
print("}  // namespace lockstep")
