// Shared by ops of several parts (attention, a recurrent layer): the arithmetic inside their
// kernels, and their dropout. For ops/*.cc alone.
#pragma once

#include "emulation/kernels/inner_math.h"
#include "src/graph/ops/broadcast.h"
#include "src/graph/ops/op_helpers.h"

namespace lockstep {

// The call's kernels, accumulators and the rounding of output 0; a and b: operands that are the
// factors of its products.
template <typename T>
InnerMath<T> inner_math(const OpCall& call, size_t a, size_t b) {
  return {.kernels = &call.kernels.of<T>(),
          .gemm_accumulator = &call.gemm_accumulator,
          .reduce_accumulator = &call.reduce_accumulator,
          .a_format = factor_format(call, a),
          .b_format = factor_format(call, b),
          .rounding = call.inner,
          .on_device = call.kernels.uses_device,
          .rounds_dropout_scale = call.rounds_dropout_scale};
}

// Fills output `index`, a mask: the given one, or one drawn with 1 at probability 1 - p.
inline void draw_output_mask(const OpCall& call, double p, size_t index) {
  if (const Tensor* given = call.random.given) {
    std::vector<int32_t> storage;
    const int32_t* mask = expand(call.kernels, given->as<int32_t>().data(), given->shape(),
                                 output_shape(call, index), storage);
    std::copy_n(mask, call.outputs[index]->size(), output<int32_t>(call, index));
    return;
  }
  const RandomStream stream(call.random.seed, RandomPurpose::kDropout, call.random.node);
  call.kernels.i32.draw_mask(stream, call.random.step, 1 - p, output<int32_t>(call, index),
                             call.outputs[index]->size());
}

// The probability attribute of a node that drops elements in training; 0 in evaluation.
inline double active_dropout(const Node& node, std::string_view name, double fallback = 0) {
  const double p = double_attribute(node, name, fallback);
  require(p >= 0 && p <= 1, node,
          "attribute '" + std::string(name) + "' is " + std::to_string(p) + ", must be in [0, 1]");
  return bool_attribute(node, "training", true) ? p : 0;
}

}  // namespace lockstep
