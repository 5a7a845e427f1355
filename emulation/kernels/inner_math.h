// The arithmetic between the parts of a kernel (attention, a recurrent layer): the kernels for its
// products and sums, and the rounding of its intermediate values.
#pragma once

#include <vector>

#include "emulation/kernels/args/elementwise_args.h"
#include "emulation/kernels/kernel_set.h"

namespace lockstep {

template <typename T>
struct InnerMath {
  const Kernels<T>* kernels = nullptr;
  const Accumulator* gemm_accumulator = nullptr;
  const Accumulator* reduce_accumulator = nullptr;
  // The formats in which the accumulator reads the factors of the products, see GemmArgs; null: not
  // specified.
  const Format *a_format = nullptr, *b_format = nullptr;
  QuantizeSpec rounding = {};  // without a format: the container's own, nothing to round
  // On a device, the number of rows may decide in which order each row is summed.
  bool on_device = false;

  bool rounds_dropout_scale = false;

  // The factor of kept elements in dropout with probability p; if it is rounded, then to nearest.
  T scale_of_dropout(double p) const {
    T scale = dropout_scale<T>(p);
    if (rounds_dropout_scale && !is_own_format(rounding.format)) {
      kernels->quantize(&scale, &scale, 1, {rounding.format}, nullptr);
    }
    return scale;
  }

  static bool is_own_format(const Format* format) {
    return format == nullptr || format->is_fp64() || (format->is_fp32() && sizeof(T) == 4);
  }

  // Rounds x in place. `part` numbers the op's roundings, 1, 2, ...: under stochastic rounding each
  // has its own random bits.
  void round(T* x, int64_t count, uint64_t part) const { round(x, count, part, rounding.format); }
  void round(T* x, int64_t count, uint64_t part, const Format* format) const {
    if (is_own_format(format)) return;
    constexpr int kStepBits = 40;  // runs are shorter than 2^40 steps, ops have fewer than 2^24
                                   // parts
    QuantizeSpec spec = rounding;
    spec.format = format;
    spec.key.step += part << kStepBits;
    kernels->quantize(x, x, count, spec, nullptr);
  }

  // A value made inside the op, as a factor of its next product: x itself. If the accumulator reads
  // factors of a narrower format (TF32): `storage`, with x rounded to nearest in that format.
  // Requires: round was applied to x.
  const T* as_factor(const T* x, int64_t count, std::vector<T>& storage) const {
    if (is_own_format(a_format)) return x;
    if (rounding.format != nullptr && contains(*a_format, *rounding.format)) return x;
    storage.resize(static_cast<size_t>(count));
    kernels->quantize(x, storage.data(), count, {a_format}, nullptr);
    return storage.data();
  }
};

}  // namespace lockstep
