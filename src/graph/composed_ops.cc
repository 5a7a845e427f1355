// The rows. An op on none of CUDA autocast's lists follows its operands.
#include "src/graph/composed_ops.h"

#include <algorithm>
#include <array>

#include "src/graph/infer.h"
#include "src/graph/recorded_backward.h"

namespace lockstep {
namespace {

constexpr std::array kComposedOps = {
    ComposedOp{"adaptive_avg_pool3d", CastClass::kFollow, "means of the windows of a volume"},
    ComposedOp{"addcdiv", CastClass::kPromote, "x + value y / z"},
    ComposedOp{"addcmul", CastClass::kPromote, "x + value y z"},
    ComposedOp{"avg_pool3d", CastClass::kFollow, "means of the windows of a volume"},
    ComposedOp{"cdist", CastClass::kFp32, "distances of all rows of x from all of y"},
    ComposedOp{"celu", CastClass::kFollow, "x, or alpha (exp(x / alpha) - 1) for x <= 0"},
    ComposedOp{"cosine_embedding_loss", CastClass::kFp32, "1 - cos(x, y), or max(cos - margin, 0)",
               /*is_loss=*/true},
    ComposedOp{"cosine_similarity", CastClass::kFp32, "sum of x y / (|x| |y|)"},
    ComposedOp{"cumprod", CastClass::kFp32, "products up to each element"},
    ComposedOp{"deform_conv2d", CastClass::kFollow,
               "a convolution that reads its operand at places of its own"},
    ComposedOp{"dist", CastClass::kFp32, "|x - y|"},
    ComposedOp{"dot",
               CastClass::kPromote,
               "the product of two vectors",
               /*is_loss=*/false,
               {.torch = "dot vdot"},
               /*is_product=*/true},
    ComposedOp{"fake_quantize",
               CastClass::kFollow,
               "x rounded to the nearest of a row of integers times a number",
               /*is_loss=*/false,
               {.torch = "fake_quantize_per_tensor_affine"}},
    ComposedOp{"fake_quantize_by_tensors", CastClass::kFollow,
               "fake_quantize with a scale and a zero point that are tensors"},
    ComposedOp{"glu", CastClass::kFollow, "x sigmoid(y) of two halves"},
    ComposedOp{"grouped_mm",
               CastClass::kFollow,
               "products of groups of rows with a matrix each",
               /*is_loss=*/false,
               {.torch = "_grouped_mm"}},
    ComposedOp{"hinge_embedding_loss", CastClass::kFp32, "x, or max(margin - x, 0)",
               /*is_loss=*/true},
    ComposedOp{"hypot", CastClass::kFollow, "sqrt(x^2 + y^2)"},
    ComposedOp{"lerp", CastClass::kFollow, "x + weight (y - x)"},
    ComposedOp{"linalg_inv",
               CastClass::kFollow,
               "the inverse of each matrix",
               /*is_loss=*/false,
               {.torch = "linalg_inv linalg_inv_ex inverse"}},
    ComposedOp{"linalg_solve", CastClass::kFollow, "x of A x = b, for each matrix A"},
    ComposedOp{"log10", CastClass::kFp32, "the logarithm to base 10"},
    ComposedOp{"log2", CastClass::kFp32, "the logarithm to base 2"},
    ComposedOp{"log_sigmoid", CastClass::kFollow, "ln sigmoid(x)"},
    ComposedOp{"logaddexp", CastClass::kFollow, "ln(exp(x) + exp(y))"},
    ComposedOp{"logit", CastClass::kFollow, "ln(x / (1 - x))"},
    ComposedOp{"margin_ranking_loss", CastClass::kFp32, "max(-t (x - y) + margin, 0)",
               /*is_loss=*/true},
    ComposedOp{"matrix_exp", CastClass::kFollow, "the exponential function of each matrix"},
    ComposedOp{"max_pool3d", CastClass::kFollow, "maxima of the windows of a volume"},
    ComposedOp{"mish", CastClass::kFollow, "x tanh(softplus(x))"},
    ComposedOp{"multi_margin_loss", CastClass::kFp32,
               "mean over the classes of max(margin - x[t] + x, 0)^p",
               /*is_loss=*/true},
    ComposedOp{"multilabel_margin_loss", CastClass::kFp32,
               "mean over labels and other classes of max(1 - x[label] + x, 0)",
               /*is_loss=*/true},
    ComposedOp{"mv",
               CastClass::kLowPrecision,
               "a matrix times a vector",
               /*is_loss=*/false,
               {.torch = "mv addmv"},
               /*is_product=*/true},
    ComposedOp{"nansum", CastClass::kFollow, "the sum of what is not NaN"},
    ComposedOp{"nll_loss",
               CastClass::kFp32,
               "-weight[t] x[t], where x holds logarithms of probabilities",
               /*is_loss=*/true,
               {.torch = "nll_loss nll_loss2d"}},
    ComposedOp{"norm",
               CastClass::kFp32,
               "|x|, for the norms 1, 2 and infinity",
               /*is_loss=*/false,
               {.torch = "linalg_vector_norm frobenius_norm", .mxnet = "_npi_norm"}},
    ComposedOp{"pdist", CastClass::kFp32, "distances of all pairs of rows"},
    ComposedOp{"poisson_nll_loss", CastClass::kFp32, "exp(x) - t x",
               /*is_loss=*/true},
    ComposedOp{"prod", CastClass::kFp32, "the product"},
    ComposedOp{"remainder",
               CastClass::kFollow,
               "x minus a multiple of y",
               /*is_loss=*/false,
               {.torch = "remainder fmod"}},
    ComposedOp{"renorm", CastClass::kFp32, "slices scaled down to a norm"},
    ComposedOp{"selu", CastClass::kFollow, "scale elu(x, alpha)"},
    ComposedOp{"soft_margin_loss", CastClass::kFp32, "ln(1 + exp(-t x))", /*is_loss=*/true},
    ComposedOp{"sparse_mm",
               CastClass::kLowPrecision,
               "the product of a sparse matrix with a dense one; as addmm, which it calls",
               /*is_loss=*/false,
               {.torch = "_sparse_mm addmm"}},
    ComposedOp{"std",
               CastClass::kFollow,
               "the standard deviation",
               /*is_loss=*/false,
               {.mxnet = "_npi_std"}},
    ComposedOp{"trace", CastClass::kFollow, "the sum of the diagonal"},
    ComposedOp{"triplet_margin_loss", CastClass::kFp32, "max(|a - p| - |a - n| + margin, 0)",
               /*is_loss=*/true},
    ComposedOp{"upsample",
               CastClass::kFp32,
               "weighted sums of pixels along each dimension",
               /*is_loss=*/false,
               {.torch = "upsample_linear1d upsample_bicubic2d upsample_trilinear3d "
                         "_upsample_bilinear2d_aa _upsample_bicubic2d_aa"}},
    ComposedOp{"weight_norm",
               CastClass::kFollow,
               "g v / |v|",
               /*is_loss=*/false,
               {.torch = "_weight_norm"}},
    ComposedOp{"xlogy", CastClass::kFollow, "x ln y, 0 where x is 0"},
};

}  // namespace

std::span<const ComposedOp> composed_ops() {
  return kComposedOps;
}

const ComposedOp* find_composed_op(std::string_view name) {
  const auto found = std::ranges::find(kComposedOps, name, &ComposedOp::name);
  return found == kComposedOps.end() ? nullptr : &*found;
}

std::vector<std::string> listable_op_names() {
  std::vector<std::string> names;
  for (const OpDef& op : ops()) {
    if (op.vjp != nullptr) names.emplace_back(op.name);
  }
  for (const ComposedOp& op : composed_ops()) names.emplace_back(op.name);
  return names;
}

std::string listed_name(const Node& node, const OpDef& op) {
  if (op.formats.class_attribute.empty()) return std::string(op.name);
  return string_attribute(node, op.formats.class_attribute, std::string(op.name));
}

CastClass own_class(const std::string& listed_name) {
  const ComposedOp* composed = find_composed_op(listed_name);
  return composed != nullptr ? composed->cast_class : find_op(listed_name).cast_class;
}

bool is_loss(const Node& node, const OpDef& op) {
  if (op.formats.class_attribute.empty()) return op.meaning.is_loss;
  const ComposedOp* composed = find_composed_op(listed_name(node, op));
  return composed != nullptr ? composed->is_loss : find_op(listed_name(node, op)).meaning.is_loss;
}

std::set<std::string> composed_inner_nodes(const Graph& graph) {
  std::set<std::string> inside, widened;
  for (const Node& node : graph.nodes) {
    if (node.is_backward() && !is_recorded(graph, node)) continue;
    const OpDef& op = find_op(node.op);
    const bool is_border = op.formats.class_of_result || !op.formats.attribute.empty();
    if (is_border && !op.formats.class_attribute.empty()) {
      // If it names a format, its output is inside.
      if (!string_attribute(node, op.formats.attribute, "").empty()) widened.insert(node.id);
      continue;
    }
    const bool is_inside = std::ranges::any_of(node.inputs, [&](const std::string& id) {
      return widened.contains(split_value_id(id).first);
    });
    if (!is_inside) continue;
    inside.insert(node.id);
    widened.insert(node.id);
  }
  return inside;
}

}  // namespace lockstep
