// Which functions of one or two numbers does a kernel set apply element by element?
// Their formulas, forward and backward, stand in emulation/math/elementwise_functions-inl.h, one
// struct per name of the lists below; the ops on top of them in src/graph/ops/unary.cc and
// binary.cc.
#pragma once

#include <cstdint>

namespace lockstep {

// X(Name): a function of x with up to two parameters. The first list has vector versions.
// Left alone by the formatter, which breaks the list elsewhere whenever it runs.
// clang-format off
#define LOCKSTEP_VECTOR_UNARY_FUNCTIONS(X)                                          \
  X(Neg) X(Abs) X(Sqrt) X(Rsqrt) X(Reciprocal) X(Exp) X(Log) X(Tanh) X(Sigmoid)     \
  X(Silu) X(Gelu) X(GeluTanh) X(Hardswish) X(Hardsigmoid) X(LeakyRelu) X(Elu)       \
  X(Softplus) X(Clamp)
// clang-format on
#define LOCKSTEP_UNARY_FUNCTIONS(X) LOCKSTEP_VECTOR_UNARY_FUNCTIONS(X) X(Power)
#define LOCKSTEP_BINARY_FUNCTIONS(X) X(Sub) X(Div) X(Minimum) X(Maximum) X(AddScaled)

#define LOCKSTEP_ENUMERATOR(Name) k##Name,
enum class Unary : uint8_t { LOCKSTEP_UNARY_FUNCTIONS(LOCKSTEP_ENUMERATOR) };
enum class Binary : uint8_t { LOCKSTEP_BINARY_FUNCTIONS(LOCKSTEP_ENUMERATOR) };
#undef LOCKSTEP_ENUMERATOR

// Whether the backward kernel reads the function's output instead of its input.
bool saves_output(Unary function);

// What they mean stands with the function; rounded to the type it computes in.
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
