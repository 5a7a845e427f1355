// Checks sizes, finds the tensor's scale, calls the kernels.
#include "emulation/kernels/block_quantize.h"

#include <stdexcept>
#include <string>

namespace lockstep {

template <typename T>
void quantize_blocks(const KernelSet& set, std::span<const T> before, std::span<T> after,
                     const BlockShape& shape, const BlockQuantizeSpec& spec, TensorStats* stats,
                     BlockScales* scales) {
  const auto count = static_cast<size_t>(shape.count());
  if (before.size() != count || after.size() != count || shape.axis < 0 || shape.axis > 1) {
    throw std::logic_error("quantize_blocks: arrays of " + std::to_string(before.size()) + " and " +
                           std::to_string(after.size()) + " elements, (" +
                           std::to_string(shape.rows) + ", " + std::to_string(shape.cols) +
                           ") required, along axis 0 or 1");
  }
  const bool has_tensor_scale = spec.format->scale == ScaleFormat::kE4m3;
  if (!(spec.tensor_scale >= 0) || (spec.tensor_scale > 0 && !has_tensor_scale)) {
    throw std::logic_error("quantize_blocks: tensor_scale " + std::to_string(spec.tensor_scale) +
                           ": >= 0 required, and 0 for " + spec.format->name);
  }
  const Kernels<T>& kernels = set.of<T>();
  T tensor_scale = 1;
  if (spec.tensor_scale > 0) {
    tensor_scale = static_cast<T>(spec.tensor_scale);
  } else if (has_tensor_scale) {
    const T amax = kernels.finite_abs_max(before.data(), shape.count());
    tensor_scale = tensor_scale_of(amax, *spec.format);
  }
  uint8_t* codes = nullptr;
  if (scales != nullptr) {
    scales->codes.resize(static_cast<size_t>(shape.scale_count(spec.format->block_size)));
    scales->tensor_scale = tensor_scale;
    codes = scales->codes.data();
  }
  kernels.quantize_blocks(before.data(), after.data(), shape, spec, tensor_scale, stats, codes);
}

template void quantize_blocks(const KernelSet&, std::span<const float>, std::span<float>,
                              const BlockShape&, const BlockQuantizeSpec&, TensorStats*,
                              BlockScales*);
template void quantize_blocks(const KernelSet&, std::span<const double>, std::span<double>,
                              const BlockShape&, const BlockQuantizeSpec&, TensorStats*,
                              BlockScales*);

}  // namespace lockstep
