// layer_norm: y = (x - mean) / sqrt(var + eps) * w + b over the last `normalized_ndim` dimensions,
// with the biased variance in two passes (the mean, then the squares of the deviations).
#include "src/graph/ops/row_norm_op.h"

namespace lockstep {
namespace {

constexpr double kTorchEps = 1e-5;
constexpr RowNormKind kKind = {"layer_norm_backward", true, kTorchEps, last_dims_layout,
                               RowNormRounds::kWeightSums};
using Norm = RowNorm<kKind>;

}  // namespace

std::vector<OpDef> layer_norm_ops() {
  return {
      {.name = "layer_norm",
       .help =
           "y = (x - mean) inv_std w + b over the last normalized_ndim (1) dimensions; operands x, "
           "weight?, bias?; also gives mean and inv_std, one per row",
       .source =
           "J. Ba, J. Kiros, G. Hinton, arXiv 1607.06450; torch.nn.functional.layer_norm; CUDA "
           "autocast: fp32",
       .cast_class = CastClass::kFp32,
       .max_inputs = 3,
       .attributes = {"normalized_ndim", "eps"},
       .infer = Norm::infer,
       .vjp = Norm::vjp,
       .run = Norm::run,
       .foreign_names = {.mxnet = "LayerNorm"},
       .formats = {.follow_operands = {0},
                   .output_follows = {kFollowsOutput0, kFollowsAccumulator, kFollowsAccumulator},
                   .on_cpu = add_weight_gradients_in_x},
       .meaning = {.first_values = FirstValues::kScaleShift}},
      {.name = "layer_norm_backward",
       .help = "dx, dw, db of layer_norm (dw, db only with w, b); operands x, mean, "
               "inv_std, dy, "
               "weight?",
       .source = "chain rule of layer_norm, through the statistics",
       .cast_class = CastClass::kFp32,
       .min_inputs = 4,
       .max_inputs = 5,
       .attributes = {"normalized_ndim", "has_weight", "has_bias"},
       .infer = Norm::infer_backward,
       .run = Norm::run_backward,
       .formats = {.follow_operands = {0}}},
  };
}

}  // namespace lockstep
