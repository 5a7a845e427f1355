// One vector loop per function and direction, indexed by the function's place in its list. The
// last, partial vector is masked; ranges are spread over the threads.
#include "emulation/kernels/simd/elements/functions.h"

#include "emulation/accumulator/fast_round.h"
#include "emulation/kernels/simd/targets.h"
#include "emulation/math/single_numbers.h"
#include "src/core/chunks.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "emulation/kernels/simd/elements/functions.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "emulation/kernels/simd/elements/functions-inl.h"
#include "emulation/kernels/simd/vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lockstep {
namespace HWY_NAMESPACE {
#if LOCKSTEP_SIMD_TARGET

#include "emulation/math/elementwise_functions-inl.h"

template <template <class> class Function, typename T>
void apply(const FunctionParameters& parameters, const T* x, const T*, T* y, int64_t count) {
  using V = hn::Vec<hn::ScalableTag<T>>;
  const Function<VectorMath<T>> f(parameters);
  map_vectors(x, x, y, count, [&](V v, V) HWY_ATTR { return f.value(v); });
}
template <template <class> class Function, typename T>
void apply_backward(const FunctionParameters& parameters, const T* saved, const T* dy, T* dx,
                    int64_t count) {
  using V = hn::Vec<hn::ScalableTag<T>>;
  const Function<VectorMath<T>> f(parameters);
  map_vectors(saved, dy, dx, count, [&](V s, V v) HWY_ATTR { return f.backward(s, v); });
}
template <template <class> class Function, typename T>
void apply_binary(const FunctionParameters& parameters, const T* a, const T* b, T* y,
                  int64_t count) {
  using V = hn::Vec<hn::ScalableTag<T>>;
  const Function<VectorMath<T>> f(parameters);
  map_vectors(a, b, y, count, [&](V u, V v) HWY_ATTR { return f.value(u, v); });
}

// Number by number, with the instructions of this set (for std::fma, std::floor), so all is
// inlined.
template <template <class> class Function, typename T>
__attribute__((flatten)) void apply_numbers(const FunctionParameters& parameters, const T* x,
                                            const T*, T* y, int64_t count) {
  const Function<SingleNumbers<T>> f(parameters);
  for (int64_t i = 0; i < count; ++i) y[i] = canonical_nan<T>(f.value(x[i]));
}
template <template <class> class Function, typename T>
__attribute__((flatten)) void apply_numbers_backward(const FunctionParameters& parameters,
                                                     const T* saved, const T* dy, T* dx,
                                                     int64_t count) {
  const Function<SingleNumbers<T>> f(parameters);
  for (int64_t i = 0; i < count; ++i) dx[i] = canonical_nan<T>(f.backward(saved[i], dy[i]));
}

template <typename T>
using Kernel = void (*)(const FunctionParameters&, const T*, const T*, T*, int64_t);

template <typename T>
void unary(Unary function, const FunctionParameters& parameters, const T* x, T* y, int64_t count) {
#define LOCKSTEP_ENTRY(Name) apply<Name##Function, T>,
#define LOCKSTEP_NUMBERS(Name) apply_numbers<Name##Function, T>,
  static constexpr Kernel<T> kTable[] = {LOCKSTEP_VECTOR_UNARY_FUNCTIONS(LOCKSTEP_ENTRY)
                                             LOCKSTEP_NUMBER_UNARY_FUNCTIONS(LOCKSTEP_NUMBERS)};
#undef LOCKSTEP_NUMBERS
#undef LOCKSTEP_ENTRY
  kTable[static_cast<size_t>(function)](parameters, x, x, y, count);
}
template <typename T>
void unary_backward(Unary function, const FunctionParameters& parameters, const T* saved,
                    const T* dy, T* dx, int64_t count) {
#define LOCKSTEP_ENTRY(Name) apply_backward<Name##Function, T>,
#define LOCKSTEP_NUMBERS(Name) apply_numbers_backward<Name##Function, T>,
  static constexpr Kernel<T> kTable[] = {LOCKSTEP_VECTOR_UNARY_FUNCTIONS(LOCKSTEP_ENTRY)
                                             LOCKSTEP_NUMBER_UNARY_FUNCTIONS(LOCKSTEP_NUMBERS)};
#undef LOCKSTEP_NUMBERS
#undef LOCKSTEP_ENTRY
  kTable[static_cast<size_t>(function)](parameters, saved, dy, dx, count);
}
template <typename T>
void binary(Binary function, const FunctionParameters& parameters, const T* a, const T* b, T* y,
            int64_t count) {
#define LOCKSTEP_ENTRY(Name) apply_binary<Name##Function, T>,
  static constexpr Kernel<T> kTable[] = {LOCKSTEP_BINARY_FUNCTIONS(LOCKSTEP_ENTRY)};
#undef LOCKSTEP_ENTRY
  kTable[static_cast<size_t>(function)](parameters, a, b, y, count);
}

#endif  // LOCKSTEP_SIMD_TARGET
}  // namespace HWY_NAMESPACE
}  // namespace lockstep
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lockstep {
namespace {

template <typename T, UnaryKernel<T> kKernel>
void spread_unary(Unary function, const FunctionParameters& parameters, const T* x, T* y,
                  int64_t count) {
  parallel_chunks(count, kElementGrain, [&](int64_t begin, int64_t end) {
    kKernel(function, parameters, x + begin, y + begin, end - begin);
  });
}
template <typename T, UnaryBackwardKernel<T> kKernel>
void spread_backward(Unary function, const FunctionParameters& parameters, const T* saved,
                     const T* dy, T* dx, int64_t count) {
  parallel_chunks(count, kElementGrain, [&](int64_t begin, int64_t end) {
    kKernel(function, parameters, saved + begin, dy + begin, dx + begin, end - begin);
  });
}
template <typename T, BinaryKernel<T> kKernel>
void spread_binary(Binary function, const FunctionParameters& parameters, const T* a, const T* b,
                   T* y, int64_t count) {
  parallel_chunks(count, kElementGrain, [&](int64_t begin, int64_t end) {
    kKernel(function, parameters, a + begin, b + begin, y + begin, end - begin);
  });
}

template <typename T, UnaryKernel<T> kUnary, UnaryBackwardKernel<T> kBackward,
          BinaryKernel<T> kBinary>
void use_loops(Kernels<T>& kernels) {
  kernels.unary = spread_unary<T, kUnary>;
  kernels.unary_backward = spread_backward<T, kBackward>;
  kernels.binary = spread_binary<T, kBinary>;
}

}  // namespace

void use_simd_functions(KernelSet& set, SimdTarget target) {
  if (target == SimdTarget::kAvx2) {
    using namespace N_AVX2;
    use_loops<float, unary<float>, unary_backward<float>, binary<float>>(set.f32);
    use_loops<double, unary<double>, unary_backward<double>, binary<double>>(set.f64);
  } else {
    using namespace N_AVX3;
    use_loops<float, unary<float>, unary_backward<float>, binary<float>>(set.f32);
    use_loops<double, unary<double>, unary_backward<double>, binary<double>>(set.f64);
  }
}

}  // namespace lockstep
#endif  // HWY_ONCE
