// See storage.h.
#include "src/execute/storage.h"

#include <algorithm>

#include "emulation/kernels/quantize.h"

namespace lockstep {

void store(const KernelSet& kernels, const Tensor& from, Tensor& to, const QuantizeSpec& spec,
           TensorStats* stats) {
  if (to.container() == Container::kI32) {
    std::ranges::copy(from.as<int32_t>(), to.as<int32_t>().begin());
    return;
  }
  const Tensor converted = from.container() == to.container() ? Tensor() : from.to(to.container());
  const Tensor& source = converted.empty() ? from : converted;
  if (to.container() == Container::kF64) {
    quantize<double>(kernels, source.as<double>(), to.as<double>(), spec, stats);
  } else {
    quantize<float>(kernels, source.as<float>(), to.as<float>(), spec, stats);
  }
}

QuantizeSpec storage_rounding(const Format* format, Rounding of_policy, const ExecutionKey& key,
                              uint32_t site) {
  static const int kFp32Precision = find_format("fp32").precision;
  const bool narrow = format == nullptr || format->precision < kFp32Precision;
  return {
      format, narrow ? of_policy : Rounding::kNearestEven, {key.seed, key.stream, site, key.step}};
}

double first_value(const Tensor& tensor) {
  return tensor.container() == Container::kF64 ? tensor.as<double>()[0] : tensor.as<float>()[0];
}

}  // namespace lockstep
