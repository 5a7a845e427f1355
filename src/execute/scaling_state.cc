// The state is stored in tensors; the rule works on a copy.
#include "src/execute/scaling_state.h"

#include <algorithm>
#include <stdexcept>

namespace lockstep {
namespace {

// Layout of a tensor.
constexpr size_t kScale = 0, kCount = 1, kHistory = 2;

}  // namespace

ScalingState::ScalingState(const Program& program) : rule_(program.scaling.delayed) {
  for (const ScaledCast& cast : program.scaled_casts) {
    if (cast.kind != ScalingKind::kDelayed) continue;
    const int64_t size = rule_.history_length + static_cast<int64_t>(kHistory);
    const auto [at, is_new] = tensors_.try_emplace(cast.name, Shape{size}, Container::kF32);
    if (!is_new) throw std::logic_error("two scaled casts are called " + cast.name);
    at->second.as<float>()[kScale] = DelayedScaleState().scale;
  }
}

float ScalingState::scale(const std::string& name) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) throw std::logic_error("no scaling state of " + name);
  return found->second.as<float>()[kScale];
}

void ScalingState::update(const ScaledCast& cast, float amax) {
  const auto values = tensors_.at(cast.name).as<float>();
  const auto history = values.subspan(kHistory);
  DelayedScaleState state;
  state.scale = values[kScale];
  const auto count = static_cast<size_t>(values[kCount]);
  state.history.assign(history.begin(), history.begin() + static_cast<std::ptrdiff_t>(count));
  state = delayed_scale_update(std::move(state), amax, *cast.to.element, rule_);
  values[kScale] = state.scale;
  values[kCount] = static_cast<float>(state.history.size());
  std::ranges::copy(state.history, history.begin());
}

}  // namespace lockstep
