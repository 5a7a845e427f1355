// The rows. An overload of torch's (".dim_IntList") never changes the op, so it is cut off first.
#include "src/policy/foreign_op_names.h"

#include <array>

#include "src/core/error.h"

namespace lockstep {
namespace {

constexpr std::array kTorchNames = {
    OpName{"mm", "matmul"},
    OpName{"bmm", "matmul"},
    OpName{"__matmul__", "matmul"},
    // On CUDA torch's cross_entropy is log_softmax followed by nll_loss, both on the fp32 list.
    OpName{"nll_loss", "cross_entropy"},
    OpName{"nll_loss", "nll_loss"},
    OpName{"nll_loss2d", "nll_loss"},
    OpName{"cross_entropy_loss", "cross_entropy"},
    OpName{"binary_cross_entropy_with_logits", "bce_with_logits"},
    OpName{"scaled_dot_product_attention", "sdpa"},
    OpName{"lstm_cell", "lstm"},
    OpName{"gru_cell", "gru"},
    OpName{"mkldnn_rnn_layer", "lstm"},
    OpName{"view", "reshape"},
    OpName{"native_batch_norm", "batch_norm"},
    OpName{"cudnn_batch_norm", "batch_norm"},
    OpName{"interpolate", "upsample_nearest2d"},
    OpName{"interpolate", "upsample_bilinear2d"},
    OpName{"__add__", "add"},
    OpName{"__sub__", "sub"},
    OpName{"__mul__", "mul"},
    OpName{"__truediv__", "div"},
    OpName{"__pow__", "pow"},
    OpName{"var", "var_mean"},
    OpName{"linalg_vector_norm", "norm"},
    OpName{"frobenius_norm", "norm"},
    OpName{"_weight_norm", "weight_norm"},
};

constexpr std::array kMxnetNames = {
    OpName{"Convolution", "conv2d"},
    OpName{"Deconvolution", "conv_transpose2d"},
    OpName{"FullyConnected", "linear"},
    OpName{"RNN", "lstm"},
    OpName{"RNN", "gru"},
    OpName{"dot", "matmul"},
    OpName{"batch_dot", "matmul"},
    OpName{"BatchNorm", "batch_norm"},
    OpName{"LayerNorm", "layer_norm"},
    OpName{"GroupNorm", "group_norm"},
    // Gluon's losses end in ops of the FP32 list; these are the symbolic names of the same losses.
    OpName{"softmax_cross_entropy", "cross_entropy"},
    OpName{"LinearRegressionOutput", "mse_loss"},
    OpName{"MAERegressionOutput", "l1_loss"},
    OpName{"LogisticRegressionOutput", "bce_with_logits"},
    OpName{"smooth_l1", "smooth_l1_loss"},
    OpName{"elemwise_add", "add"},
    OpName{"broadcast_add", "add"},
    OpName{"elemwise_sub", "sub"},
    OpName{"broadcast_sub", "sub"},
    OpName{"elemwise_mul", "mul"},
    OpName{"broadcast_mul", "mul"},
    OpName{"elemwise_div", "div"},
    OpName{"broadcast_div", "div"},
    OpName{"broadcast_maximum", "maximum"},
    OpName{"broadcast_minimum", "minimum"},
    OpName{"_power", "pow"},
    OpName{"_power_scalar", "pow"},
    OpName{"Concat", "cat"},
    OpName{"moments", "var_mean"},
    OpName{"_npi_cumsum", "cumsum"},
    OpName{"_npi_std", "std"},
    OpName{"_npi_norm", "norm"},
    OpName{"Embedding", "embedding"},
    OpName{"Dropout", "dropout"},
    OpName{"Pooling", "max_pool2d"},
    OpName{"Pooling", "avg_pool2d"},
    OpName{"AdaptiveAvgPooling2D", "adaptive_avg_pool2d"},
    OpName{"Activation", "relu"},
    OpName{"Activation", "sigmoid"},
    OpName{"Activation", "tanh"},
    OpName{"Activation", "softplus"},
    OpName{"LeakyReLU", "leaky_relu"},
    OpName{"LeakyReLU", "prelu"},
    OpName{"LeakyReLU", "elu"},
    OpName{"LeakyReLU", "gelu"},
    OpName{"where", "where"},
    OpName{"where", "masked_fill"},
    OpName{"transpose", "permute"},
    OpName{"Flatten", "reshape"},
    OpName{"expand_dims", "reshape"},
    OpName{"take", "index_select"},
};

}  // namespace

OpNames find_op_names(const std::string& system) {
  if (system == "torch") return OpNames::kTorch;
  if (system == "mxnet") return OpNames::kMxnet;
  throw InputError("op names of '" + system + "': unknown",
                   did_you_mean(system, {"torch", "mxnet"}));
}

std::span<const OpName> foreign_op_names(OpNames system) {
  if (system == OpNames::kMxnet) return kMxnetNames;
  return kTorchNames;
}

std::vector<std::string> lockstep_op_names(OpNames system, std::string_view name) {
  const std::string_view base = system == OpNames::kTorch ? name.substr(0, name.find('.')) : name;
  std::vector<std::string> names;
  for (const OpName& row : foreign_op_names(system)) {
    if (row.foreign == base) names.emplace_back(row.lockstep);
  }
  if (names.empty()) names.emplace_back(base);
  return names;
}

}  // namespace lockstep
