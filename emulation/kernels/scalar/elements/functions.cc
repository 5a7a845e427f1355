// One loop per function and direction, indexed by the function's place in its list.
#include "emulation/kernels/scalar/elements/functions.h"

#include "emulation/accumulator/fast_round.h"
#include "emulation/math/single_numbers.h"
#include "src/core/chunks.h"

namespace lockstep {
namespace {

#include "emulation/math/elementwise_functions-inl.h"

// y[i] = f(i); ranges are spread over the threads.
template <typename T, typename Function>
void for_each_element(int64_t count, T* y, Function f) {
  parallel_chunks(count, kElementGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) y[i] = canonical_nan<T>(f(i));
  });
}

template <template <class> class Function, typename T>
void apply(const FunctionParameters& parameters, const T* x, T* y, int64_t count) {
  const Function<SingleNumbers<T>> f(parameters);
  for_each_element(count, y, [&](int64_t i) { return f.value(x[i]); });
}
template <template <class> class Function, typename T>
void apply_backward(const FunctionParameters& parameters, const T* saved, const T* dy, T* dx,
                    int64_t count) {
  const Function<SingleNumbers<T>> f(parameters);
  for_each_element(count, dx, [&](int64_t i) { return f.backward(saved[i], dy[i]); });
}
template <template <class> class Function, typename T>
void apply_binary(const FunctionParameters& parameters, const T* a, const T* b, T* y,
                  int64_t count) {
  const Function<SingleNumbers<T>> f(parameters);
  for_each_element(count, y, [&](int64_t i) { return f.value(a[i], b[i]); });
}

}  // namespace

template <typename T>
void scalar_unary(Unary function, const FunctionParameters& parameters, const T* x, T* y,
                  int64_t count) {
#define LOCKSTEP_ENTRY(Name) apply<Name##Function, T>,
  using Kernel = void (*)(const FunctionParameters&, const T*, T*, int64_t);
  static constexpr Kernel kTable[] = {LOCKSTEP_UNARY_FUNCTIONS(LOCKSTEP_ENTRY)};
#undef LOCKSTEP_ENTRY
  kTable[static_cast<size_t>(function)](parameters, x, y, count);
}

template <typename T>
void scalar_unary_backward(Unary function, const FunctionParameters& parameters, const T* saved,
                           const T* dy, T* dx, int64_t count) {
#define LOCKSTEP_ENTRY(Name) apply_backward<Name##Function, T>,
  using Kernel = void (*)(const FunctionParameters&, const T*, const T*, T*, int64_t);
  static constexpr Kernel kTable[] = {LOCKSTEP_UNARY_FUNCTIONS(LOCKSTEP_ENTRY)};
#undef LOCKSTEP_ENTRY
  kTable[static_cast<size_t>(function)](parameters, saved, dy, dx, count);
}

template <typename T>
void scalar_binary(Binary function, const FunctionParameters& parameters, const T* a, const T* b,
                   T* y, int64_t count) {
#define LOCKSTEP_ENTRY(Name) apply_binary<Name##Function, T>,
  using Kernel = void (*)(const FunctionParameters&, const T*, const T*, T*, int64_t);
  static constexpr Kernel kTable[] = {LOCKSTEP_BINARY_FUNCTIONS(LOCKSTEP_ENTRY)};
#undef LOCKSTEP_ENTRY
  kTable[static_cast<size_t>(function)](parameters, a, b, y, count);
}

template <typename T>
void scalar_choice_backward(T sign, const T* own, const T* other, const T* dy, T* dx,
                            int64_t count) {
  for_each_element(count, dx, [=](int64_t i) {
    const T x = sign * own[i], y = sign * other[i];
    if (x == y) return dy[i] / 2;
    return x > y ? T(0) : dy[i];
  });
}

template <typename T>
void scalar_power(const T* x, const T* e, T* y, int64_t count) {
  for_each_element(count, y, [=](int64_t i) { return lockstep_pow(x[i], e[i]); });
}

template <typename T>
void scalar_power_backward_base(const T* x, const T* e, const T* dy, T* dx, int64_t count) {
  for_each_element(count, dx, [=](int64_t i) {
    return e[i] == 0 ? T(0) : dy[i] * (e[i] * lockstep_pow(x[i], e[i] - 1));
  });
}

template <typename T>
void scalar_power_backward_exponent(const T* x, const T* e, const T* y, const T* dy, T* de,
                                    int64_t count) {
  for_each_element(count, de, [=](int64_t i) {
    return dy[i] * (x[i] == 0 && e[i] >= 0 ? T(0) : y[i] * lockstep_log(x[i]));
  });
}

template <typename T>
void scalar_div_backward(const T* a, const T* b, const T* dy, T* db, int64_t count) {
  for_each_element(count, db, [=](int64_t i) { return -dy[i] * (a[i] / b[i] / b[i]); });
}

#define LOCKSTEP_INSTANTIATE(T)                                                                    \
  template void scalar_unary(Unary, const FunctionParameters&, const T*, T*, int64_t);             \
  template void scalar_unary_backward(Unary, const FunctionParameters&, const T*, const T*, T*,    \
                                      int64_t);                                                    \
  template void scalar_binary(Binary, const FunctionParameters&, const T*, const T*, T*, int64_t); \
  template void scalar_choice_backward(T, const T*, const T*, const T*, T*, int64_t);              \
  template void scalar_power(const T*, const T*, T*, int64_t);                                     \
  template void scalar_power_backward_base(const T*, const T*, const T*, T*, int64_t);             \
  template void scalar_power_backward_exponent(const T*, const T*, const T*, const T*, T*,         \
                                               int64_t);                                           \
  template void scalar_div_backward(const T*, const T*, const T*, T*, int64_t);
LOCKSTEP_INSTANTIATE(float)
LOCKSTEP_INSTANTIATE(double)
#undef LOCKSTEP_INSTANTIATE

}  // namespace lockstep
