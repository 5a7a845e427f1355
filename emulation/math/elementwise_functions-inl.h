// The functions of emulation/math/elementwise_functions.h, written once over an arithmetic M, like
// emulation/math/functions-inl.h. Both files are included together: for single numbers, which
// defines the bits, and for vectors. value(x) is the function; backward(s, dy) is dy times its
// derivative, where s is x, or y if kSavesOutput. Formulas and kinks are PyTorch's. The kernels
// make NaN canonical.
//
// To add a function, add its name to a list and a struct NameFunction.

// X(Name): a function of x with up to two parameters. The first list has vector versions;
// the second is computed number by number.
// The formatter is off because it would break the list at other places on every run.
// clang-format off
#ifndef LOCKSTEP_VECTOR_UNARY_FUNCTIONS
#define LOCKSTEP_VECTOR_UNARY_FUNCTIONS(X)                                          \
  X(Neg) X(Abs) X(Sqrt) X(Rsqrt) X(Reciprocal) X(Exp) X(Log) X(Tanh) X(Sigmoid)     \
  X(Silu) X(Gelu) X(GeluTanh) X(Hardswish) X(Hardsigmoid) X(LeakyRelu) X(Elu)       \
  X(Softplus) X(Clamp) X(Erf) X(Expm1) X(Log1p) X(Power)
#define LOCKSTEP_NUMBER_UNARY_FUNCTIONS(X)                                          \
  X(Exp2) X(Sin) X(Cos) X(Tan) X(Asin) X(Acos) X(Atan) X(Sinh) X(Cosh)              \
  X(Asinh) X(Acosh) X(Atanh) X(Lgamma) X(Digamma) X(Floor) X(Ceil) X(Round) X(Trunc)
#define LOCKSTEP_UNARY_FUNCTIONS(X)                                                 \
  LOCKSTEP_VECTOR_UNARY_FUNCTIONS(X) LOCKSTEP_NUMBER_UNARY_FUNCTIONS(X)
#define LOCKSTEP_BINARY_FUNCTIONS(X) X(Sub) X(Div) X(Minimum) X(Maximum) X(AddScaled)
#endif
// clang-format on

#ifndef LOCKSTEP_LISTS_ALONE

// Common to all functions of one number.
struct FunctionBase {
  static constexpr bool kSavesOutput = false;
};

template <class M>
struct NegFunction : FunctionBase {
  using V = typename M::V;
  explicit HWY_INLINE NegFunction(const FunctionParameters&) {}
  HWY_INLINE V value(V x) const { return M::neg(x); }
  HWY_INLINE V backward(V, V dy) const { return M::neg(dy); }
};

// The derivative at 0 is 0.
template <class M>
struct AbsFunction : FunctionBase {
  using V = typename M::V;
  explicit HWY_INLINE AbsFunction(const FunctionParameters&) {}
  HWY_INLINE V value(V x) const { return M::abs(x); }
  HWY_INLINE V backward(V x, V dy) const {
    const V zero = M::set(0);
    const V sign =
        M::select(M::lt(zero, x), M::set(1), M::select(M::lt(x, zero), M::set(-1), zero));
    return dy * sign;
  }
};

template <class M>
struct SqrtFunction : FunctionBase {
  using V = typename M::V;
  static constexpr bool kSavesOutput = true;
  explicit HWY_INLINE SqrtFunction(const FunctionParameters&) {}
  HWY_INLINE V value(V x) const { return M::sqrt(x); }
  HWY_INLINE V backward(V y, V dy) const { return dy / (M::set(2) * y); }
};

template <class M>
struct RsqrtFunction : FunctionBase {
  using V = typename M::V;
  static constexpr bool kSavesOutput = true;
  explicit HWY_INLINE RsqrtFunction(const FunctionParameters&) {}
  HWY_INLINE V value(V x) const { return M::set(1) / M::sqrt(x); }
  HWY_INLINE V backward(V y, V dy) const { return (M::set(-0.5) * dy) * (y * y * y); }
};

template <class M>
struct ReciprocalFunction : FunctionBase {
  using V = typename M::V;
  static constexpr bool kSavesOutput = true;
  explicit HWY_INLINE ReciprocalFunction(const FunctionParameters&) {}
  HWY_INLINE V value(V x) const { return M::set(1) / x; }
  HWY_INLINE V backward(V y, V dy) const { return M::neg(dy) * (y * y); }
};

template <class M>
struct ExpFunction : FunctionBase {
  using V = typename M::V;
  static constexpr bool kSavesOutput = true;
  explicit HWY_INLINE ExpFunction(const FunctionParameters&) {}
  HWY_INLINE V value(V x) const { return M::exp(x); }
  HWY_INLINE V backward(V y, V dy) const { return dy * y; }
};

template <class M>
struct LogFunction : FunctionBase {
  using V = typename M::V;
  explicit HWY_INLINE LogFunction(const FunctionParameters&) {}
  HWY_INLINE V value(V x) const { return M::log(x); }
  HWY_INLINE V backward(V x, V dy) const { return dy / x; }
};

template <class M>
struct TanhFunction : FunctionBase {
  using V = typename M::V;
  static constexpr bool kSavesOutput = true;
  explicit HWY_INLINE TanhFunction(const FunctionParameters&) {}
  HWY_INLINE V value(V x) const { return M::tanh(x); }
  HWY_INLINE V backward(V y, V dy) const { return dy * (M::set(1) - y * y); }
};

template <class M>
struct SigmoidFunction : FunctionBase {
  using V = typename M::V;
  static constexpr bool kSavesOutput = true;
  explicit HWY_INLINE SigmoidFunction(const FunctionParameters&) {}
  HWY_INLINE V value(V x) const { return Functions<M>::sigmoid(x); }
  HWY_INLINE V backward(V y, V dy) const { return dy * (M::set(1) - y) * y; }
};

// x sigmoid(x)
template <class M>
struct SiluFunction : FunctionBase {
  using V = typename M::V;
  explicit HWY_INLINE SiluFunction(const FunctionParameters&) {}
  HWY_INLINE V value(V x) const { return x / (M::set(1) + M::exp(M::neg(x))); }
  HWY_INLINE V backward(V x, V dy) const {
    const V one = M::set(1), s = Functions<M>::sigmoid(x);
    return dy * s * (one + x * (one - s));
  }
};

// x Phi(x), Phi(x) = (1 + erf(x / sqrt 2)) / 2; the derivative is Phi(x) + x phi(x).
template <class M>
struct GeluFunction : FunctionBase {
  using V = typename M::V;
  static constexpr double kSqrtHalf = 0x1.6a09e667f3bcdp-1;          // sqrt(1/2)
  static constexpr double kInverseSqrtTwoPi = 0x1.9884533d43651p-2;  // 1 / sqrt(2 pi)
  explicit HWY_INLINE GeluFunction(const FunctionParameters&) {}
  HWY_INLINE V cumulative(V x) const {
    return M::set(0.5) * (M::set(1) + Functions<M>::erf(x * M::set(kSqrtHalf)));
  }
  HWY_INLINE V value(V x) const { return x * cumulative(x); }
  HWY_INLINE V backward(V x, V dy) const {
    const V density = M::set(kInverseSqrtTwoPi) * M::exp(x * x * M::set(-0.5));
    return dy * (cumulative(x) + x * density);
  }
};

// x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2
// Source: D. Hendrycks, K. Gimpel, arXiv 1606.08415, section 2.
template <class M>
struct GeluTanhFunction : FunctionBase {
  using V = typename M::V;
  static constexpr double kSqrtTwoOverPi = 0x1.9884533d43651p-1;
  static constexpr double kCubic = 0.044715;
  explicit HWY_INLINE GeluTanhFunction(const FunctionParameters&) {}
  HWY_INLINE V inner(V x) const {
    return M::tanh(M::set(kSqrtTwoOverPi) * (x + M::set(kCubic) * (x * x * x)));
  }
  HWY_INLINE V value(V x) const { return M::set(0.5) * x * (M::set(1) + inner(x)); }
  HWY_INLINE V backward(V x, V dy) const {
    const V one = M::set(1), half = M::set(0.5), t = inner(x);
    const V slope = M::set(kSqrtTwoOverPi) * (one + M::set(3 * kCubic) * (x * x));
    return dy * (half * (one + t) + half * x * (one - t * t) * slope);
  }
};

// x min(max(x + 3, 0), 6) / 6; derivative 0 at -3, 1 at 3 and for NaN.
template <class M>
struct HardswishFunction : FunctionBase {
  using V = typename M::V;
  explicit HWY_INLINE HardswishFunction(const FunctionParameters&) {}
  HWY_INLINE V value(V x) const {
    return x * M::clamp(x + M::set(3), M::set(0), M::set(6)) / M::set(6);
  }
  HWY_INLINE V backward(V x, V dy) const {
    const V inside = dy * (x / M::set(3) + M::set(0.5));
    const V right = M::select(M::lt(x, M::set(3)), inside, dy);
    return M::select(M::le(x, M::set(-3)), M::set(0), right);
  }
};

// min(max(x + 3, 0), 6) / 6; derivative 0 at both kinks. Between them it is 1/6 rounded to float,
// in FP64 too, as in PyTorch.
template <class M>
struct HardsigmoidFunction : FunctionBase {
  using V = typename M::V;
  static constexpr double kSixth = 1.0f / 6.0f;
  explicit HWY_INLINE HardsigmoidFunction(const FunctionParameters&) {}
  HWY_INLINE V value(V x) const {
    return M::clamp(x + M::set(3), M::set(0), M::set(6)) / M::set(6);
  }
  HWY_INLINE V backward(V x, V dy) const {
    const auto inside = M::both(M::lt(M::set(-3), x), M::lt(x, M::set(3)));
    return M::select(inside, dy * M::set(kSixth), M::set(0));
  }
};

// x, or a x for x <= 0.
template <class M>
struct LeakyReluFunction : FunctionBase {
  using V = typename M::V;
  const V slope;
  explicit HWY_INLINE LeakyReluFunction(const FunctionParameters& p) : slope(M::set(p.a)) {}
  HWY_INLINE V value(V x) const { return M::select(M::lt(M::set(0), x), x, x * slope); }
  HWY_INLINE V backward(V x, V dy) const { return M::select(M::lt(M::set(0), x), dy, dy * slope); }
};

// x, or a (exp(x) - 1) for x <= 0.
template <class M>
struct EluFunction : FunctionBase {
  using V = typename M::V;
  const V alpha;
  explicit HWY_INLINE EluFunction(const FunctionParameters& p) : alpha(M::set(p.a)) {}
  HWY_INLINE V value(V x) const {
    return M::select(M::le(x, M::set(0)), alpha * Functions<M>::expm1(x), x);
  }
  HWY_INLINE V backward(V x, V dy) const {
    return M::select(M::le(x, M::set(0)), dy * alpha * M::exp(x), dy);
  }
};

// log(1 + exp(a x)) / a, or x where a x > b.
template <class M>
struct SoftplusFunction : FunctionBase {
  using V = typename M::V;
  const V beta, threshold;
  explicit HWY_INLINE SoftplusFunction(const FunctionParameters& p)
      : beta(M::set(p.a)), threshold(M::set(p.b)) {}
  HWY_INLINE V value(V x) const {
    const V z = x * beta;
    return M::select(M::lt(threshold, z), x, Functions<M>::log1p(M::exp(z)) / beta);
  }
  HWY_INLINE V backward(V x, V dy) const {
    const V z = x * beta, e = M::exp(z);
    return M::select(M::lt(threshold, z), dy, dy * e / (e + M::set(1)));
  }
};

// min(max(x, a), b); derivative 1 on both bounds, NaN stays and has derivative 0.
template <class M>
struct ClampFunction : FunctionBase {
  using V = typename M::V;
  const V low, high;
  explicit HWY_INLINE ClampFunction(const FunctionParameters& p)
      : low(M::set(p.a)), high(M::set(p.b)) {}
  HWY_INLINE V value(V x) const { return M::clamp(x, low, high); }
  HWY_INLINE V backward(V x, V dy) const {
    return M::select(M::both(M::le(low, x), M::le(x, high)), dy, M::set(0));
  }
};

// The derivative is 2 exp(-x^2) / sqrt(pi).
template <class M>
struct ErfFunction : FunctionBase {
  using V = typename M::V;
  static constexpr double kTwoOverSqrtPi = 0x1.20dd750429b6dp+0;
  explicit HWY_INLINE ErfFunction(const FunctionParameters&) {}
  HWY_INLINE V value(V x) const { return Functions<M>::erf(x); }
  HWY_INLINE V backward(V x, V dy) const {
    return M::set(kTwoOverSqrtPi) * M::exp(M::neg(x * x)) * dy;
  }
};

template <class M>
struct Expm1Function : FunctionBase {
  using V = typename M::V;
  static constexpr bool kSavesOutput = true;
  explicit HWY_INLINE Expm1Function(const FunctionParameters&) {}
  HWY_INLINE V value(V x) const { return Functions<M>::expm1(x); }
  HWY_INLINE V backward(V y, V dy) const { return dy * (y + M::set(1)); }
};

template <class M>
struct Log1pFunction : FunctionBase {
  using V = typename M::V;
  explicit HWY_INLINE Log1pFunction(const FunctionParameters&) {}
  HWY_INLINE V value(V x) const { return Functions<M>::log1p(x); }
  HWY_INLINE V backward(V x, V dy) const { return dy / (x + M::set(1)); }
};

// x^a; common exponents as PyTorch has them.
template <class M>
struct PowerFunction : FunctionBase {
  using V = typename M::V;
  const double exponent;
  explicit HWY_INLINE PowerFunction(const FunctionParameters& p) : exponent(p.a) {}
  static HWY_INLINE V power(V x, double e) {
    if (e == 1) return x;
    if (e == 2) return x * x;
    if (e == 3) return x * x * x;
    if (e == 0.5) return M::sqrt(x);
    if (e == -0.5) return M::set(1) / M::sqrt(x);
    if (e == -1) return M::set(1) / x;
    if (e == -2) return M::set(1) / (x * x);
    return M::pow(x, M::set(e));
  }
  HWY_INLINE V value(V x) const { return power(x, exponent); }
  HWY_INLINE V backward(V x, V dy) const {
    if (exponent == 0) return M::set(0);
    return dy * (M::set(exponent) * power(x, exponent - 1));
  }
};

// ---- single numbers only ----

// 2^x; the derivative is y ln 2.
template <class M>
struct Exp2Function : FunctionBase {
  using V = typename M::V;
  static constexpr bool kSavesOutput = true;
  explicit HWY_INLINE Exp2Function(const FunctionParameters&) {}
  HWY_INLINE V value(V x) const { return M::exp2(x); }
  HWY_INLINE V backward(V y, V dy) const { return dy * y * M::set(0x1.62e42fefa39efp-1); }
};

template <class M>
struct SinFunction : FunctionBase {
  using V = typename M::V;
  explicit HWY_INLINE SinFunction(const FunctionParameters&) {}
  HWY_INLINE V value(V x) const { return M::sin(x); }
  HWY_INLINE V backward(V x, V dy) const { return dy * M::cos(x); }
};

template <class M>
struct CosFunction : FunctionBase {
  using V = typename M::V;
  explicit HWY_INLINE CosFunction(const FunctionParameters&) {}
  HWY_INLINE V value(V x) const { return M::cos(x); }
  HWY_INLINE V backward(V x, V dy) const { return dy * M::neg(M::sin(x)); }
};

template <class M>
struct TanFunction : FunctionBase {
  using V = typename M::V;
  static constexpr bool kSavesOutput = true;
  explicit HWY_INLINE TanFunction(const FunctionParameters&) {}
  HWY_INLINE V value(V x) const { return M::tan(x); }
  HWY_INLINE V backward(V y, V dy) const { return dy * (M::set(1) + y * y); }
};

template <class M>
struct AsinFunction : FunctionBase {
  using V = typename M::V;
  explicit HWY_INLINE AsinFunction(const FunctionParameters&) {}
  HWY_INLINE V value(V x) const { return M::asin(x); }
  HWY_INLINE V backward(V x, V dy) const { return dy * (M::set(1) / M::sqrt(M::set(1) - x * x)); }
};

template <class M>
struct AcosFunction : FunctionBase {
  using V = typename M::V;
  explicit HWY_INLINE AcosFunction(const FunctionParameters&) {}
  HWY_INLINE V value(V x) const { return M::acos(x); }
  HWY_INLINE V backward(V x, V dy) const { return dy * (M::set(-1) / M::sqrt(M::set(1) - x * x)); }
};

template <class M>
struct AtanFunction : FunctionBase {
  using V = typename M::V;
  explicit HWY_INLINE AtanFunction(const FunctionParameters&) {}
  HWY_INLINE V value(V x) const { return M::atan(x); }
  HWY_INLINE V backward(V x, V dy) const { return dy / (x * x + M::set(1)); }
};

template <class M>
struct SinhFunction : FunctionBase {
  using V = typename M::V;
  explicit HWY_INLINE SinhFunction(const FunctionParameters&) {}
  HWY_INLINE V value(V x) const { return M::sinh(x); }
  HWY_INLINE V backward(V x, V dy) const { return dy * M::cosh(x); }
};

template <class M>
struct CoshFunction : FunctionBase {
  using V = typename M::V;
  explicit HWY_INLINE CoshFunction(const FunctionParameters&) {}
  HWY_INLINE V value(V x) const { return M::cosh(x); }
  HWY_INLINE V backward(V x, V dy) const { return dy * M::sinh(x); }
};

template <class M>
struct AsinhFunction : FunctionBase {
  using V = typename M::V;
  explicit HWY_INLINE AsinhFunction(const FunctionParameters&) {}
  HWY_INLINE V value(V x) const { return M::asinh(x); }
  HWY_INLINE V backward(V x, V dy) const { return dy * (M::set(1) / M::sqrt(x * x + M::set(1))); }
};

template <class M>
struct AcoshFunction : FunctionBase {
  using V = typename M::V;
  explicit HWY_INLINE AcoshFunction(const FunctionParameters&) {}
  HWY_INLINE V value(V x) const { return M::acosh(x); }
  HWY_INLINE V backward(V x, V dy) const { return dy * (M::set(1) / M::sqrt(x * x - M::set(1))); }
};

template <class M>
struct AtanhFunction : FunctionBase {
  using V = typename M::V;
  explicit HWY_INLINE AtanhFunction(const FunctionParameters&) {}
  HWY_INLINE V value(V x) const { return M::atanh(x); }
  HWY_INLINE V backward(V x, V dy) const { return dy / (M::set(1) - x * x); }
};

template <class M>
struct LgammaFunction : FunctionBase {
  using V = typename M::V;
  explicit HWY_INLINE LgammaFunction(const FunctionParameters&) {}
  HWY_INLINE V value(V x) const { return M::lgamma(x); }
  HWY_INLINE V backward(V x, V dy) const { return dy * M::digamma(x); }
};

template <class M>
struct DigammaFunction : FunctionBase {
  using V = typename M::V;
  explicit HWY_INLINE DigammaFunction(const FunctionParameters&) {}
  HWY_INLINE V value(V x) const { return M::digamma(x); }
  HWY_INLINE V backward(V x, V dy) const { return dy * M::trigamma(x); }
};

// To whole numbers, halves to even ones; the derivative is 0.
template <class M>
struct FloorFunction : FunctionBase {
  using V = typename M::V;
  explicit HWY_INLINE FloorFunction(const FunctionParameters&) {}
  HWY_INLINE V value(V x) const { return M::floor(x); }
  HWY_INLINE V backward(V, V) const { return M::set(0); }
};

template <class M>
struct CeilFunction : FunctionBase {
  using V = typename M::V;
  explicit HWY_INLINE CeilFunction(const FunctionParameters&) {}
  HWY_INLINE V value(V x) const { return M::ceil(x); }
  HWY_INLINE V backward(V, V) const { return M::set(0); }
};

template <class M>
struct RoundFunction : FunctionBase {
  using V = typename M::V;
  explicit HWY_INLINE RoundFunction(const FunctionParameters&) {}
  HWY_INLINE V value(V x) const { return M::round(x); }
  HWY_INLINE V backward(V, V) const { return M::set(0); }
};

template <class M>
struct TruncFunction : FunctionBase {
  using V = typename M::V;
  explicit HWY_INLINE TruncFunction(const FunctionParameters&) {}
  HWY_INLINE V value(V x) const { return M::trunc(x); }
  HWY_INLINE V backward(V, V) const { return M::set(0); }
};

// ---- of two numbers ----

template <class M>
struct SubFunction {
  using V = typename M::V;
  explicit HWY_INLINE SubFunction(const FunctionParameters&) {}
  HWY_INLINE V value(V a, V b) const { return a - b; }
};

template <class M>
struct DivFunction {
  using V = typename M::V;
  explicit HWY_INLINE DivFunction(const FunctionParameters&) {}
  HWY_INLINE V value(V a, V b) const { return a / b; }
};

// The smaller one; NaN if either is NaN.
template <class M>
struct MinimumFunction {
  using V = typename M::V;
  explicit HWY_INLINE MinimumFunction(const FunctionParameters&) {}
  HWY_INLINE V value(V a, V b) const {
    return M::select(M::eq(b, b), M::select(M::lt(b, a), b, a), b);
  }
};

template <class M>
struct MaximumFunction {
  using V = typename M::V;
  explicit HWY_INLINE MaximumFunction(const FunctionParameters&) {}
  HWY_INLINE V value(V a, V b) const {
    return M::select(M::eq(b, b), M::select(M::lt(a, b), b, a), b);
  }
};

// x + a y, rounded once.
template <class M>
struct AddScaledFunction {
  using V = typename M::V;
  const V alpha;
  explicit HWY_INLINE AddScaledFunction(const FunctionParameters& p) : alpha(M::set(p.a)) {}
  HWY_INLINE V value(V x, V y) const { return M::fma(alpha, y, x); }
};

#endif  // LOCKSTEP_LISTS_ALONE
