// erf, expm1, log1p and sigmoid, written once over an arithmetic M.
// It has no include guard: emulation/math/functions.h includes it for single numbers, which defines
// the bits, and emulation/kernels/simd/elements/functions-inl.h once per instruction set for
// vectors. M supplies the numbers (V), constants, comparisons, `select`, fma and the functions of
// emulation/math/exp_log.h. Only this file defines the order of operations.
//
// Error (tested): expm1, log1p, erf within 1.5 ulp; sigmoid within 2 ulp where exp(-x) is finite,
// and 0 below.

template <class M>
struct Functions {
  using V = typename M::V;
  using T = typename M::T;
  using C = FunctionConstants<T>;

  // 1 / (1 + exp(-x)).
  static HWY_INLINE V sigmoid(V x) {
    const V one = M::set(1);
    return one / (one + M::exp(M::neg(x)));
  }

  // exp(x) - 1. With exp(x) = 2^n (1 + r + tail) as in exp: (2^n - 1 + 2^n r) + 2^n tail, the first
  // sum with its error.
  static HWY_INLINE V expm1(V x) {
    const V low = M::set(C::kExpm1MinusOne), high = M::set(C::kExpm1IsExp);
    const V inside = M::select(M::lt(x, high), M::select(M::lt(x, low), low, x), high);
    V n, r, tail;
    M::reduce_exp(inside, n, r, tail);
    const V scale = M::power_of_two(n);
    const V base = scale - M::set(1), scaled = scale * r;
    const V sum = base + scaled;
    const V rest = M::two_sum_error(base, scaled, sum) + scale * tail;
    V y = M::select(M::lt(x, high), sum + rest, M::exp(x));
    y = M::select(M::lt(x, low), M::set(-1), y);
    return M::select(M::eq(x, M::set(0)), x, y);  // keeps the sign of zero
  }

  // log(1 + x): with u = round(1 + x), log u plus the rounding's loss, (1 + x - u) / u.
  static HWY_INLINE V log1p(V x) {
    const V one = M::set(1), u = one + x;
    const V lost = M::two_sum_error(one, x, u);
    // If u is 0 or infinite, log u is the result and `lost` is not used.
    const V y = M::log(u);
    const V corrected = y + lost / u;
    const V finite = M::set(std::numeric_limits<T>::max());
    const auto proper = M::both(M::lt(M::set(0), u), M::le(u, finite));
    return M::select(M::eq(x, M::set(0)), x, M::select(proper, corrected, y));
  }

  // 2 / sqrt(pi) times the integral of exp(-t^2) from 0 to x.
  //   |x| < 1.25   x + x q(x^2), Taylor's series
  //   above        1 - erfc |x|, erfc x = exp(-x^2) g(u) / (x + 4), u linear in 4 / (x + 4)
  static HWY_INLINE V erf(V x) {
    const V magnitude = M::abs(x), one = M::set(1), four = M::set(4);
    const V square = x * x;
    V series = M::set(C::kErfSeries.back());
    for (size_t i = C::kErfSeries.size() - 1; i-- > 0;) {
      series = M::fma(series, square, M::set(C::kErfSeries[i]));
    }
    const V near = M::fma(x, series, x);

    const V limit = M::set(C::kErfOne);
    const V a = M::select(M::lt(magnitude, limit), magnitude, limit);
    const V high = a * a;
    const V low = M::fma(a, a, M::neg(high));
    const V gauss = M::exp(M::neg(high));
    const V exponential = M::fma(M::neg(gauss), low, gauss);
    const V below = a + four;
    const V u = M::fma(four / below, M::set(C::kErfcSlope), M::set(C::kErfcShift));
    V g = M::set(C::kErfc.back());
    for (size_t i = C::kErfc.size() - 1; i-- > 0;) g = M::fma(g, u, M::set(C::kErfc[i]));
    const V far = M::copysign(one - exponential * (g / below), x);

    V y = M::select(M::lt(magnitude, M::set(C::kErfSeriesEnd)), near, far);
    y = M::select(M::lt(limit, magnitude), M::copysign(one, x), y);
    return M::select(M::eq(x, x), y, M::set(std::numeric_limits<T>::quiet_NaN()));
  }
};
