// The rows. An overload (".dim_IntList") never changes the op, so it is cut off first.
#include "src/graph/torch_op_names.h"

#include <array>

namespace lockstep {
namespace {

constexpr std::array kNames = {
    TorchOpName{"mm", "matmul"},
    TorchOpName{"bmm", "matmul"},
    // On CUDA torch's cross_entropy is log_softmax followed by nll_loss, both on the fp32 list.
    TorchOpName{"nll_loss", "cross_entropy"},
    TorchOpName{"binary_cross_entropy_with_logits", "bce_with_logits"},
    TorchOpName{"scaled_dot_product_attention", "sdpa"},
    TorchOpName{"lstm_cell", "lstm"},
    TorchOpName{"gru_cell", "gru"},
    TorchOpName{"view", "reshape"},
    TorchOpName{"native_batch_norm", "batch_norm"},
    TorchOpName{"cudnn_batch_norm", "batch_norm"},
};

}  // namespace

std::span<const TorchOpName> torch_op_names() {
  return kNames;
}

std::string lockstep_op_name(std::string_view torch_name) {
  const std::string_view base = torch_name.substr(0, torch_name.find('.'));
  for (const TorchOpName& row : kNames) {
    if (row.torch == base) return std::string(row.lockstep);
  }
  return std::string(base);
}

}  // namespace lockstep
