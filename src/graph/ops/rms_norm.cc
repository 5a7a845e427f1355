// rms_norm: y = x / sqrt(mean of x^2 + eps) * w over the last `normalized_ndim` dimensions.
#include "src/graph/ops/row_norm_op.h"

namespace lockstep {
namespace {

// torch's default is the machine epsilon of x's type; this one is FP32's.
constexpr double kTorchEps = 0x1p-23;
constexpr RowNormKind kKind = {"rms_norm_backward", false, kTorchEps, last_dims_layout};
using Norm = RowNorm<kKind>;

}  // namespace

std::vector<OpDef> rms_norm_ops() {
  return {
      {.name = "rms_norm",
       .help = "y = x inv_rms w over the last normalized_ndim (1) dimensions, inv_rms = 1 / "
               "sqrt(mean of "
               "x^2 + eps); operands x, weight?; also gives inv_rms, one per row",
       .source = "B. Zhang, R. Sennrich, NeurIPS 2019; torch.nn.functional.rms_norm; CUDA "
                 "autocast: fp32 since 2.12",
       .cast_class = CastClass::kFp32,
       .max_inputs = 2,
       .attributes = {"normalized_ndim", "eps"},
       .infer = Norm::infer,
       .vjp = Norm::vjp,
       .run = Norm::run,
       .formats = {.follow_operands = {0},
                   .output_follows = {kFollowsOutput0, kFollowsAccumulator}},
       .meaning = {.first_values = FirstValues::kScaleShift}},
      {.name = "rms_norm_backward",
       .help = "dx, dw of rms_norm (dw only with w); operands x, inv_rms, dy, weight?",
       .source = "chain rule of rms_norm, through the statistics",
       .cast_class = CastClass::kFp32,
       .min_inputs = 3,
       .max_inputs = 4,
       .attributes = {"normalized_ndim", "has_weight", "has_bias"},
       .infer = Norm::infer_backward,
       .run = Norm::run_backward,
       .formats = {.follow_operands = {0}}},
  };
}

}  // namespace lockstep
