// The triple loop; rows of the result are spread over the threads.
#include "emulation/kernels/scalar/products/gemm.h"

#include <vector>

#include "emulation/accumulator/dot.h"
#include "src/core/parallel.h"

namespace lockstep {

template <typename T>
void scalar_gemm(const GemmArgs<T>& g) {
  parallel_for(g.m, [&](int64_t i) {
    std::vector<T> a(static_cast<size_t>(g.k)), b(a);
    for (int64_t k = 0; k < g.k; ++k)
      a[k] = g.transpose_a ? g.a[k * g.lda + i] : g.a[i * g.lda + k];
    for (int64_t j = 0; j < g.n; ++j) {
      for (int64_t k = 0; k < g.k; ++k) {
        b[k] = g.transpose_b ? g.b[j * g.ldb + k] : g.b[k * g.ldb + j];
      }
      T& c = g.c[i * g.ldc + j];
      const DotOperands<T> operands{a.data(), b.data(), g.k, g.a_format, g.b_format};
      c = static_cast<T>(accumulate_dot(*g.accumulator, operands, g.start_from_c ? c : T(0),
                                        g.events != nullptr ? g.events + i * g.n + j : nullptr));
    }
  });
}

template void scalar_gemm(const GemmArgs<float>&);
template void scalar_gemm(const GemmArgs<double>&);

}  // namespace lockstep
