// group_norm: normalises x (N,C,...) over every group of C / groups neighbouring channels of an
// image, with one weight and bias per channel. Instance normalisation is groups = C.
#include "src/graph/ops/row_norm_op.h"

namespace lockstep {
namespace {

constexpr double kTorchEps = 1e-5;

RowNormLayout layout(const Node& node, const Shape& x) {
  require_channels(node, x);
  const int64_t groups = int_attribute(node, "groups", 0);
  require(groups >= 1 && x[1] % groups == 0, node,
          "attribute 'groups' is " + std::to_string(groups) + ", must divide the " +
              std::to_string(x[1]) + " channels of operand 0 " + to_string(x));
  RowNormLayout layout{};
  layout.rows = x[0] * groups;
  layout.cols = element_count(x) / layout.rows;
  layout.groups = groups;
  layout.spatial = element_count(x) / (x[0] * x[1]);
  layout.weight = {x[1]};
  layout.statistics = {x[0], groups};
  return layout;
}

constexpr RowNormKind kKind = {"group_norm_backward", true, kTorchEps, layout,
                               RowNormRounds::kStatistics};
using Norm = RowNorm<kKind>;

}  // namespace

std::vector<OpDef> group_norm_ops() {
  return {
      {.name = "group_norm",
       .help =
           "y = (x - mean) inv_std w + b over groups of channels; x (N,C,...), weight?, bias? (C); "
           "also gives mean and inv_std (N,groups)",
       .source = "Y. Wu, K. He, ECCV 2018; torch.nn.functional.group_norm; CUDA autocast: fp32",
       .cast_class = CastClass::kFp32,
       .max_inputs = 3,
       .attributes = {"groups", "eps"},
       .infer = Norm::infer,
       .vjp = Norm::vjp,
       .run = Norm::run,
       .foreign_names = {.mxnet = "GroupNorm"},
       .formats = {.follow_operands = {0},
                   .output_follows = {kFollowsOutput0, kFollowsAccumulator, kFollowsAccumulator},
                   .on_cpu = round_instance_statistics},
       .meaning = {.first_values = FirstValues::kScaleShift}},
      {.name = "group_norm_backward",
       .help = "dx, dw, db of group_norm (dw, db only with w, b); operands x, mean, "
               "inv_std, dy, "
               "weight?",
       .source = "chain rule of group_norm, through the statistics",
       .cast_class = CastClass::kFp32,
       .min_inputs = 4,
       .max_inputs = 5,
       .attributes = {"groups", "has_weight", "has_bias"},
       .infer = Norm::infer_backward,
       .run = Norm::run_backward,
       .formats = {.follow_operands = {0}}},
  };
}

}  // namespace lockstep
