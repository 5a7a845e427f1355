// Four passes, each over a whole array.
#include "emulation/kernels/rounded_gemm.h"

#include <vector>

namespace lockstep {

template <typename T>
void rounded_gemm_in_passes(const RoundedGemmArgs<T>& args, void (*gemm)(const GemmArgs<T>&),
                            void (*quantize)(const T*, T*, int64_t, const QuantizeSpec&,
                                             TensorStats*)) {
  GemmArgs<T> product = args.product;
  std::vector<T> a, b;
  const auto round = [&](const T*& x, int64_t count, const GemmRounding& how, std::vector<T>& to) {
    if (how.spec.format == nullptr) return;
    if (!how.spec.measure_only) to.resize(static_cast<size_t>(count));
    quantize(x, to.data(), count, how.spec, how.stats);
    if (!how.spec.measure_only) x = to.data();
  };
  round(product.a, product.m * product.k, args.a, a);
  round(product.b, product.k * product.n, args.b, b);
  gemm(product);
  if (args.c.spec.format == nullptr) return;
  quantize(product.c, product.c, product.m * product.n, args.c.spec, args.c.stats);
}

template <typename T>
void rounded_gemm(const Kernels<T>& kernels, const RoundedGemmArgs<T>& args) {
  if (kernels.rounded_gemm != nullptr) return kernels.rounded_gemm(args);
  rounded_gemm_in_passes(args, kernels.gemm, kernels.quantize);
}

template void rounded_gemm(const Kernels<float>&, const RoundedGemmArgs<float>&);
template void rounded_gemm(const Kernels<double>&, const RoundedGemmArgs<double>&);
template void rounded_gemm_in_passes(const RoundedGemmArgs<float>&,
                                     void (*)(const GemmArgs<float>&),
                                     void (*)(const float*, float*, int64_t, const QuantizeSpec&,
                                              TensorStats*));
template void rounded_gemm_in_passes(const RoundedGemmArgs<double>&,
                                     void (*)(const GemmArgs<double>&),
                                     void (*)(const double*, double*, int64_t, const QuantizeSpec&,
                                              TensorStats*));

}  // namespace lockstep
