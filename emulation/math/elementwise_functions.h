// The functions of one or two numbers that a kernel set applies element by element.
// Their lists and formulas, forward and backward, are in
// emulation/math/elementwise_functions-inl.h. This header includes that file for its lists alone.
// The ops that use the functions are in src/graph/ops/unary.cc and binary.cc.
#pragma once

#include <cstdint>

#define LOCKSTEP_LISTS_ALONE
#include "emulation/math/elementwise_functions-inl.h"
#undef LOCKSTEP_LISTS_ALONE

namespace lockstep {

#define LOCKSTEP_ENUMERATOR(Name) k##Name,
enum class Unary : uint8_t { LOCKSTEP_UNARY_FUNCTIONS(LOCKSTEP_ENUMERATOR) };
enum class Binary : uint8_t { LOCKSTEP_BINARY_FUNCTIONS(LOCKSTEP_ENUMERATOR) };
#undef LOCKSTEP_ENUMERATOR

// True if the backward kernel reads the function's output instead of its input.
bool saves_output(Unary function);

// Each function documents their meaning. They are rounded to the type it computes in.
struct FunctionParameters {
  double a = 0, b = 0;
};

// y[i] = f(x[i])
template <typename T>
using UnaryKernel = void (*)(Unary, const FunctionParameters&, const T* x, T* y, int64_t count);
// dx[i] = dy[i] f'(x[i]), from what the function saves: x or y.
template <typename T>
using UnaryBackwardKernel = void (*)(Unary, const FunctionParameters&, const T* saved, const T* dy,
                                     T* dx, int64_t count);
// y[i] = f(a[i], b[i])
template <typename T>
using BinaryKernel = void (*)(Binary, const FunctionParameters&, const T* a, const T* b, T* y,
                              int64_t count);

}  // namespace lockstep
