// Whose gradient is right, where an FP64 replay and PyTorch agree on a loss but not on its
// gradient. Moves the parameter along the difference of the two gradients. The change of the
// replay's loss belongs to one of them: central differences need no backward pass.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "src/core/tensor.h"

namespace lockstep {

enum class GradientOwner : uint8_t { kReplay, kTorch, kNeither };

struct WhoseGradient {
  GradientOwner right = GradientOwner::kNeither;
  double measured = 0, replay = 0, torch = 0;  // slopes of the loss along torch - replay
  std::string text(const std::string& parameter, int64_t step) const;
};

// loss_at: the FP64 loss, as the gradients have it, with `parameter` replaced. None: the gradients
// are too near to each other for central differences.
std::optional<WhoseGradient> whose_gradient(const Tensor& parameter, const Tensor& replay,
                                            const Tensor& torch,
                                            const std::function<double(const Tensor&)>& loss_at);

}  // namespace lockstep
