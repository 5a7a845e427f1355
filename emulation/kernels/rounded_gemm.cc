// Four passes, each over a whole array.
#include "emulation/kernels/rounded_gemm.h"

namespace lockstep {

template <typename T>
RoundedFactors<T>::RoundedFactors(const RoundedGemmArgs<T>& args, QuantizeFunction<T> quantize)
    : product_(args.product), result_(args.c) {
  const auto round = [&](const T*& x, int64_t count, const GemmRounding& how, std::vector<T>& to) {
    if (how.spec.format == nullptr) return;
    if (!how.spec.measure_only) to.resize(static_cast<size_t>(count));
    quantize(x, to.data(), count, how.spec, how.stats);
    if (!how.spec.measure_only) x = to.data();
  };
  round(product_.a, product_.m * product_.k, args.a, a_);
  round(product_.b, product_.k * product_.n, args.b, b_);
}

template <typename T>
void rounded_gemm_in_passes(const RoundedGemmArgs<T>& args, void (*gemm)(const GemmArgs<T>&),
                            QuantizeFunction<T> quantize) {
  const RoundedFactors<T> factors(args, quantize);
  const GemmArgs<T> product = factors.rest().product;
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
                                     void (*)(const GemmArgs<float>&), QuantizeFunction<float>);
template void rounded_gemm_in_passes(const RoundedGemmArgs<double>&,
                                     void (*)(const GemmArgs<double>&), QuantizeFunction<double>);
template class RoundedFactors<float>;

}  // namespace lockstep
