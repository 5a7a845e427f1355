// Every condition rounds the number itself: nothing here restates a format's limits.
#include "src/update/vanishing.h"

#include <fmt/format.h>

#include <array>
#include <string_view>

#include "emulation/format/rounding.h"

namespace lockstep {
namespace {

double nearest(double x, const Format& format) {
  return round_to_format(x, format, Rounding::kNearestEven);
}
bool is_lost(double x, const Format& format) {
  return x != 0 && nearest(x, format) == 0;
}
bool is_one(double x, const Format& format) {
  return x != 1 && nearest(x, format) == 1;
}

class Finder {
 public:
  Finder(const Policy& policy, const OptimizerGroup& group)
      : policy_(policy),
        numbers_(group.numbers),
        optimizer_(*group.optimizer),
        arithmetic_(*policy.arithmetic_of(policy.weight)),
        state_(*policy.state_of(policy.weight)),
        stored_(policy.has_master(policy.weight) ? *policy.master : *policy.weight) {}

  std::vector<std::string> find() {
    // Torch's ops round their results to the format: eps added to 0 is rounded like a stored eps.
    if (is_lost(value("eps"), arithmetic_)) {
      add("eps = {} is 0 in {}: if the average of squares is 0, the update divides by 0",
          value("eps"), arithmetic_.name);
    }
    if (keeps_lr() && is_lost(value("lr"), arithmetic_)) {
      add("lr = {} is 0 in {}: no weight changes", value("lr"), arithmetic_.name);
    }
    find_decay();
    for (const std::string_view factor : optimizer_.average_factors) find_factor(factor);
    return std::move(found_);
  }

 private:
  template <typename... Args>
  void add(fmt::format_string<Args...> text, Args&&... args) {
    found_.push_back(fmt::format(text, std::forward<Args>(args)...));
  }

  // 0, which no format loses, for a number that the optimizer lacks.
  double value(std::string_view name) const {
    const auto it = numbers_.all().find(name);
    return it == numbers_.all().end() ? 0 : it->second;
  }

  // Whether lr is rounded to the arithmetic's format: torch's scalars are FP32, but those of `add`
  // on the CPU have the tensor's format.
  bool keeps_lr() const {
    switch (policy_.optimizer_steps) {
      case OptimizerSteps::kElementary:
        return true;
      case OptimizerSteps::kTorchCpu:
        return optimizer_.adds_lr != nullptr && optimizer_.adds_lr(numbers_);
      case OptimizerSteps::kTorch:
        break;
    }
    return false;
  }

  // A sum that is rounded to nearest loses addends below half an ulp.
  bool stores_to_nearest() const {
    if (policy_.update_rounding == UpdateRounding::kNearestEven) return true;
    if (policy_.update_rounding != UpdateRounding::kStorage) return false;
    return stored_.is_fp32() || policy_.rounding != Rounding::kStochastic;
  }

  void find_decay() {
    const double lr = value("lr"), decay = value("weight_decay");
    if (decay == 0) return;
    if (optimizer_.chooses_step) return;
    const bool is_always = bool(optimizer_.tensor_rule);  // what is added has no known size
    const bool decoupled = is_always || value("decoupled_weight_decay") != 0;
    const bool of_tensors = policy_.optimizer_steps != OptimizerSteps::kTorch;
    if (!decoupled && of_tensors && is_lost(decay, arithmetic_)) {
      add("weight_decay = {} is 0 in {}: weights never decay", decay, arithmetic_.name);
      return;
    }
    // After division by a root, as in Adam, the decay in the gradient has no fixed size. The
    // momentum buffer of a constant c is c (1 - dampening) / (1 - momentum).
    if (!decoupled && !optimizer_.is_linear) return;
    const double gain = decoupled || value("momentum") == 0
                            ? 1
                            : (1 - value("dampening")) / (1 - value("momentum"));
    const double shrinks = 1 - lr * decay * gain;
    const std::string_view formula = gain == 1 ? "lr weight_decay"
                                     : value("dampening") == 0
                                         ? "lr weight_decay / (1 - momentum)"
                                         : "lr weight_decay (1 - dampening) / (1 - momentum)";
    if (decoupled && is_one(shrinks, arithmetic_)) {
      add("1 - lr weight_decay = 1 - {:.3g} is 1 in {}: weights never decay", lr * decay,
          arithmetic_.name);
    } else if (stores_to_nearest() && is_one(shrinks, stored_)) {
      add("1 - {} = 1 - {:.3g} is 1 in {}: decay alone changes no weight", formula, 1 - shrinks,
          stored_.name);
    }
  }

  void find_factor(std::string_view name) {
    const double factor = value(name);
    if (factor == 0) return;
    const Format* format = is_one(factor, arithmetic_) ? &arithmetic_
                           : is_one(factor, state_)    ? &state_
                                                       : nullptr;
    if (format == nullptr) return;
    add("{} = {} is 1 in {}: its average never decays", name, factor, format->name);
  }

  const Policy& policy_;
  const HyperNumbers& numbers_;
  const Optimizer& optimizer_;
  const Format &arithmetic_, &state_, &stored_;
  std::vector<std::string> found_;
};

}  // namespace

std::vector<std::string> vanishing_constants(const Policy& policy,
                                             const std::vector<OptimizerGroup>& groups,
                                             const std::vector<std::string>& names) {
  std::vector<std::string> found;
  for (size_t i = 0; i < groups.size(); ++i) {
    const std::string where = names.at(i).empty() ? "" : names[i] + ": ";
    for (const std::string& text : Finder(policy, groups[i]).find()) found.push_back(where + text);
  }
  return found;
}

}  // namespace lockstep
