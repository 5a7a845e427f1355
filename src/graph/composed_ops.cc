// The rows. An op on none of CUDA autocast's lists follows its operands, but for complex and fft:
// CPU autocast lists them as FP32, and CUDA has next to no kernels for complex numbers below.
#include "src/graph/composed_ops.h"

#include <algorithm>

#include "src/graph/infer.h"
#include "src/graph/recorded_backward.h"

namespace lockstep {
namespace {

constexpr ComposedOp kComposedOps[] = {
    {.name = "adaptive_avg_pool3d",
     .cast_class = CastClass::kFollow,
     .help = "means of the windows of a volume"},
    {.name = "addcdiv", .cast_class = CastClass::kPromote, .help = "x + value y / z"},
    {.name = "addcmul", .cast_class = CastClass::kPromote, .help = "x + value y z"},
    {.name = "avg_pool3d",
     .cast_class = CastClass::kFollow,
     .help = "means of the windows of a volume"},
    {.name = "cdist",
     .cast_class = CastClass::kFp32,
     .help = "distances of all rows of x from all of y"},
    {.name = "celu",
     .cast_class = CastClass::kFollow,
     .help = "x, or alpha (exp(x / alpha) - 1) for x <= 0"},
    {.name = "cholesky_inverse",
     .cast_class = CastClass::kFollow,
     .help = "the inverse of L L^T for each triangular L"},
    {.name = "cholesky_solve",
     .cast_class = CastClass::kFollow,
     .help = "x of L L^T x = b, for each triangular L"},
    {.name = "complex",
     .cast_class = CastClass::kFp32,
     .help = "complex numbers, as pairs of real ones",
     .foreign_names = {.torch = "polar view_as_complex"},
     .keeps_class = true},
    {.name = "cosine_embedding_loss",
     .cast_class = CastClass::kFp32,
     .help = "1 - cos(x, y), or max(cos - margin, 0)",
     .is_loss = true},
    {.name = "cosine_similarity", .cast_class = CastClass::kFp32, .help = "sum of x y / (|x| |y|)"},
    {.name = "cumprod", .cast_class = CastClass::kFp32, .help = "products up to each element"},
    {.name = "deform_conv2d",
     .cast_class = CastClass::kFollow,
     .help = "a convolution that reads its operand at places of its own"},
    {.name = "dist", .cast_class = CastClass::kFp32, .help = "|x - y|"},
    {.name = "dot",
     .cast_class = CastClass::kPromote,
     .help = "the product of two vectors",
     .foreign_names = {.torch = "dot vdot"},
     .is_product = true},
    {.name = "fake_quantize",
     .cast_class = CastClass::kFollow,
     .help = "x rounded to the nearest of a row of integers times a number",
     .foreign_names = {.torch = "fake_quantize_per_tensor_affine"}},
    {.name = "fake_quantize_by_tensors",
     .cast_class = CastClass::kFollow,
     .help = "fake_quantize with a scale and a zero point that are tensors"},
    {.name = "fft",
     .cast_class = CastClass::kFp32,
     .help = "Fourier transforms, as products with matrices of cosines and sines",
     .foreign_names = {.torch = "fft_fft fft_ifft fft_fft2 fft_ifft2 fft_fftn fft_ifftn fft_rfft "
                                "fft_irfft fft_rfft2 fft_irfft2 fft_rfftn fft_irfftn fft_hfft "
                                "fft_ihfft stft istft"},
     .keeps_class = true},
    {.name = "glu", .cast_class = CastClass::kFollow, .help = "x sigmoid(y) of two halves"},
    {.name = "grid_sample3d",
     .cast_class = CastClass::kPromote,
     .help = "a volume read at places (x, y, z) in [-1, 1]",
     .foreign_names = {.torch = "grid_sampler grid_sampler_3d"}},
    {.name = "grouped_mm",
     .cast_class = CastClass::kFollow,
     .help = "products of groups of rows with a matrix each",
     .foreign_names = {.torch = "_grouped_mm"}},
    {.name = "hinge_embedding_loss",
     .cast_class = CastClass::kFp32,
     .help = "x, or max(margin - x, 0)",
     .is_loss = true},
    {.name = "hypot", .cast_class = CastClass::kFollow, .help = "sqrt(x^2 + y^2)"},
    {.name = "lerp", .cast_class = CastClass::kFollow, .help = "x + weight (y - x)"},
    {.name = "linalg_cholesky",
     .cast_class = CastClass::kFollow,
     .help = "the triangular L of each matrix L L^T",
     .foreign_names = {.torch = "linalg_cholesky linalg_cholesky_ex cholesky"}},
    {.name = "linalg_det",
     .cast_class = CastClass::kFollow,
     .help = "the determinant of each matrix",
     .foreign_names = {.torch = "linalg_det det"}},
    {.name = "linalg_inv",
     .cast_class = CastClass::kFollow,
     .help = "the inverse of each matrix",
     .foreign_names = {.torch = "linalg_inv linalg_inv_ex inverse"}},
    {.name = "linalg_lu",
     .cast_class = CastClass::kFollow,
     .help = "P, L and U of each matrix P L U"},
    {.name = "linalg_slogdet",
     .cast_class = CastClass::kFollow,
     .help = "sign and ln |det| of each matrix",
     .foreign_names = {.torch = "linalg_slogdet slogdet logdet"}},
    {.name = "linalg_solve",
     .cast_class = CastClass::kFollow,
     .help = "x of A x = b, for each matrix A",
     .foreign_names = {.torch = "linalg_solve linalg_solve_ex"}},
    {.name = "linalg_solve_triangular",
     .cast_class = CastClass::kFollow,
     .help = "x of L x = b, for each triangular L",
     .foreign_names = {.torch = "linalg_solve_triangular triangular_solve"}},
    {.name = "log10", .cast_class = CastClass::kFp32, .help = "the logarithm to base 10"},
    {.name = "log2", .cast_class = CastClass::kFp32, .help = "the logarithm to base 2"},
    {.name = "log_sigmoid", .cast_class = CastClass::kFollow, .help = "ln sigmoid(x)"},
    {.name = "logaddexp", .cast_class = CastClass::kFollow, .help = "ln(exp(x) + exp(y))"},
    {.name = "logit", .cast_class = CastClass::kFollow, .help = "ln(x / (1 - x))"},
    {.name = "margin_ranking_loss",
     .cast_class = CastClass::kFp32,
     .help = "max(-t (x - y) + margin, 0)",
     .is_loss = true},
    {.name = "matrix_exp",
     .cast_class = CastClass::kFollow,
     .help = "the exponential function of each matrix"},
    {.name = "max_pool3d",
     .cast_class = CastClass::kFollow,
     .help = "maxima of the windows of a volume"},
    {.name = "mish", .cast_class = CastClass::kFollow, .help = "x tanh(softplus(x))"},
    {.name = "multi_margin_loss",
     .cast_class = CastClass::kFp32,
     .help = "mean over the classes of max(margin - x[t] + x, 0)^p",
     .is_loss = true},
    {.name = "multilabel_margin_loss",
     .cast_class = CastClass::kFp32,
     .help = "mean over labels and other classes of max(1 - x[label] + x, 0)",
     .is_loss = true},
    {.name = "mv",
     .cast_class = CastClass::kLowPrecision,
     .help = "a matrix times a vector",
     .foreign_names = {.torch = "mv addmv"},
     .is_product = true},
    {.name = "nansum", .cast_class = CastClass::kFollow, .help = "the sum of what is not NaN"},
    {.name = "nll_loss",
     .cast_class = CastClass::kFp32,
     .help = "-weight[t] x[t], where x holds logarithms of probabilities",
     .is_loss = true,
     .foreign_names = {.torch = "nll_loss nll_loss2d"}},
    {.name = "norm",
     .cast_class = CastClass::kFp32,
     .help = "|x|, for the norms 1, 2 and infinity",
     .foreign_names = {.torch = "linalg_vector_norm frobenius_norm", .mxnet = "_npi_norm"}},
    {.name = "pdist", .cast_class = CastClass::kFp32, .help = "distances of all pairs of rows"},
    {.name = "poisson_nll_loss",
     .cast_class = CastClass::kFp32,
     .help = "exp(x) - t x",
     .is_loss = true},
    {.name = "prod", .cast_class = CastClass::kFp32, .help = "the product"},
    {.name = "remainder",
     .cast_class = CastClass::kFollow,
     .help = "x minus a multiple of y",
     .foreign_names = {.torch = "remainder fmod"}},
    {.name = "renorm", .cast_class = CastClass::kFp32, .help = "slices scaled down to a norm"},
    {.name = "selu", .cast_class = CastClass::kFollow, .help = "scale elu(x, alpha)"},
    {.name = "soft_margin_loss",
     .cast_class = CastClass::kFp32,
     .help = "ln(1 + exp(-t x))",
     .is_loss = true},
    {.name = "sparse_mm",
     .cast_class = CastClass::kLowPrecision,
     .help = "the product of a sparse matrix with a dense one; as addmm, which it calls",
     .foreign_names = {.torch = "_sparse_mm addmm"}},
    {.name = "std",
     .cast_class = CastClass::kFollow,
     .help = "the standard deviation",
     .foreign_names = {.mxnet = "_npi_std"}},
    {.name = "trace", .cast_class = CastClass::kFollow, .help = "the sum of the diagonal"},
    {.name = "triplet_margin_loss",
     .cast_class = CastClass::kFp32,
     .help = "max(|a - p| - |a - n| + margin, 0)",
     .is_loss = true},
    {.name = "upsample",
     .cast_class = CastClass::kFp32,
     .help = "weighted sums of pixels along each dimension",
     .foreign_names = {.torch = "upsample_linear1d upsample_bicubic2d upsample_trilinear3d "
                                "_upsample_bilinear2d_aa _upsample_bicubic2d_aa"}},
    {.name = "weight_norm",
     .cast_class = CastClass::kFollow,
     .help = "g v / |v|",
     .foreign_names = {.torch = "_weight_norm"}},
    {.name = "xlogy", .cast_class = CastClass::kFollow, .help = "x ln y, 0 where x is 0"},
};

}  // namespace

std::span<const ComposedOp> composed_ops() {
  return kComposedOps;
}

const ComposedOp* find_composed_op(std::string_view name) {
  const auto found = std::ranges::find(kComposedOps, name, &ComposedOp::name);
  return found == std::end(kComposedOps) ? nullptr : &*found;
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

bool is_own_constant(const Node& node) {
  return bool_attribute(node, kOwnAttribute, false);
}

std::set<std::string> composed_inner_nodes(const Graph& graph) {
  std::set<std::string> inside, widened;
  for (const Node& node : graph.nodes) {
    if (node.is_backward() && !is_recorded(graph, node)) continue;
    const OpDef& op = find_op(node.op);
    const bool is_border = op.formats.class_of_result || !op.formats.attribute.empty();
    if (is_border && !op.formats.class_attribute.empty()) {
      if (is_own_constant(node)) inside.insert(node.id);
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
