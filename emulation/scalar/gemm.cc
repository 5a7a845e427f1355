// The triple loop; rows of the result are spread over the threads.
#include "emulation/scalar/gemm.h"

#include "emulation/scalar/chain.h"
#include "src/core/parallel.h"

namespace lockstep {

template <typename T>
void scalar_gemm(const GemmArgs<T>& g) {
  const ChainRule<T> chain(*g.accumulator);
  parallel_for(g.m, [&](int64_t i) {
    for (int64_t j = 0; j < g.n; ++j) {
      double acc = g.start_from_c ? g.c[i * g.ldc + j] : T(0);
      uint8_t* events = g.events != nullptr ? g.events + i * g.n + j : nullptr;
      for (int64_t k = 0; k < g.k; ++k) {
        const T a = g.transpose_a ? g.a[k * g.lda + i] : g.a[i * g.lda + k];
        const T b = g.transpose_b ? g.b[j * g.ldb + k] : g.b[k * g.ldb + j];
        acc = chain.step(acc, a, b, events);
      }
      g.c[i * g.ldc + j] = canonical_nan(static_cast<T>(acc));
    }
  });
}

template void scalar_gemm(const GemmArgs<float>&);
template void scalar_gemm(const GemmArgs<double>&);

}  // namespace lockstep
