// See prelu.h.
#include "emulation/kernels/scalar/elements/prelu.h"

#include "emulation/accumulator/fast_round.h"
#include "src/core/chunks.h"

namespace lockstep {
namespace {

// body(element, its slope)
template <typename T, typename Body>
void for_elements(const PreluShape& s, const T* w, Body body) {
  parallel_chunks(s.count, kElementGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      body(i, s.channels == 1 ? w[0] : w[i / s.inner % s.channels]);
    }
  });
}

}  // namespace

template <typename T>
void scalar_prelu(const PreluShape& shape, const T* x, const T* w, T* y) {
  for_elements(shape, w,
               [&](int64_t i, T slope) { y[i] = canonical_nan(x[i] > 0 ? x[i] : slope * x[i]); });
}

template <typename T>
void scalar_prelu_backward(const PreluShape& shape, const T* x, const T* w, const T* dy, T* dx,
                           T* dw_terms) {
  for_elements(shape, w, [&](int64_t i, T slope) {
    dx[i] = canonical_nan(x[i] > 0 ? dy[i] : slope * dy[i]);
    dw_terms[i] = x[i] > 0 ? T(0) : canonical_nan(x[i] * dy[i]);
  });
}

#define LOCKSTEP_INSTANTIATE(T)                                          \
  template void scalar_prelu(const PreluShape&, const T*, const T*, T*); \
  template void scalar_prelu_backward(const PreluShape&, const T*, const T*, const T*, T*, T*);
LOCKSTEP_INSTANTIATE(float)
LOCKSTEP_INSTANTIATE(double)
#undef LOCKSTEP_INSTANTIATE

}  // namespace lockstep
