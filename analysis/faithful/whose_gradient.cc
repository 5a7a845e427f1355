// See whose_gradient.h.
#include "analysis/faithful/whose_gradient.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "analysis/faithful/gate_norms.h"

namespace lockstep {
namespace {

// Steps of central differences, relative to the parameter's norm. In FP64 the first has a
// truncation error of some 1e-8, the second of some 1e-10, and rounding adds 1e-11: a kink between
// the points, or a path that changed, makes the two disagree.
constexpr double kSteps[] = {1e-4, 1e-5};
// The measured slope belongs to a gradient if it is within this share of the distance of the two.
constexpr double kNear = 0.01;
constexpr double kLeastDistance = 1e-4;  // of the two gradients, relative to the larger

}  // namespace

std::optional<WhoseGradient> whose_gradient(const Tensor& parameter, const Tensor& replay,
                                            const Tensor& torch,
                                            const std::function<double(const Tensor&)>& loss_at) {
  const Tensor w = parameter.to(Container::kF64), ours = replay.to(Container::kF64),
               theirs = torch.to(Container::kF64);
  const Distance between = distance(ours, theirs);
  const double apart = between.difference, size = distance(w, w).value;
  if (!(apart > kLeastDistance * std::max(between.value, between.reference))) return {};
  WhoseGradient out;
  Tensor direction = theirs;
  for (size_t i = 0; i < static_cast<size_t>(w.size()); ++i) {
    const double along = (theirs.as<double>()[i] - ours.as<double>()[i]) / apart;
    direction.as<double>()[i] = along;
    out.replay += along * ours.as<double>()[i];
    out.torch += along * theirs.as<double>()[i];
  }
  const auto moved = [&](double by) {
    Tensor at = w;
    for (size_t i = 0; i < static_cast<size_t>(w.size()); ++i) {
      at.as<double>()[i] += by * direction.as<double>()[i];
    }
    return loss_at(at);
  };
  bool is_ours = true, is_theirs = true;
  for (const double relative : kSteps) {
    const double step = relative * (size > 0 ? size : 1);
    out.measured = (moved(step) - moved(-step)) / (2 * step);
    is_ours = is_ours && std::abs(out.measured - out.replay) <= kNear * apart;
    is_theirs = is_theirs && std::abs(out.measured - out.torch) <= kNear * apart;
  }
  if (is_ours) out.right = GradientOwner::kReplay;
  if (is_theirs) out.right = GradientOwner::kTorch;
  return out;
}

std::string WhoseGradient::text(const std::string& parameter, int64_t step) const {
  const std::string slopes = fmt::format(
      "step {}: where the gradients of '{}' differ, the loss has the slope {:.6g} (central "
      "differences in FP64), the replay says {:.6g}, PyTorch {:.6g}",
      step, parameter, measured, replay, torch);
  switch (right) {
    case GradientOwner::kReplay:
      return slopes +
             ": PyTorch's own backward pass is wrong here. Lanes train with the right gradient, so "
             "they do not repeat the captured run; write the ops after this parameter in another "
             "way, or take another version of PyTorch";
    case GradientOwner::kTorch:
      return slopes + ": the replay is wrong. Please report it";
    case GradientOwner::kNeither:
      return slopes + ": it is neither's, as with gradients that a model makes itself";
  }
  return slopes;
}

}  // namespace lockstep
