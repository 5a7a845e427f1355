// See stored_parameter.h.
#include "src/update/stored_parameter.h"

#include <algorithm>

namespace lockstep {

Tensor state_before_first_step(const OptimizerState& state, const Shape& shape,
                               Container container) {
  Tensor start(state.shape_for(shape), container);
  if (container == Container::kF64) {
    std::ranges::fill(start.as<double>(), state.initial);
  } else {
    std::ranges::fill(start.as<float>(), static_cast<float>(state.initial));
  }
  return start;
}

template <typename T>
OptimizerArrays<T> arrays_of(StoredParameter& parameter, const Tensor& gradient, int64_t step) {
  OptimizerArrays<T> arrays;
  Tensor& weight = parameter.updated();
  arrays.count = weight.size();
  arrays.shape = weight.shape();
  arrays.weight = weight.as<T>().data();
  arrays.grad = gradient.as<T>().data();
  arrays.state_count = static_cast<int>(parameter.states.size());
  for (size_t k = 0; k < parameter.states.size(); ++k) {
    arrays.states[k] = parameter.states[k].as<T>().data();
  }
  if (!parameter.compensation.empty()) {
    arrays.compensation = parameter.compensation.as<T>().data();
  }
  arrays.step = step;
  return arrays;
}

template OptimizerArrays<float> arrays_of(StoredParameter&, const Tensor&, int64_t);
template OptimizerArrays<double> arrays_of(StoredParameter&, const Tensor&, int64_t);

}  // namespace lockstep
