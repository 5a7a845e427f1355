// See tensor_rule.h.
#include "src/update/tensor_rule.h"

namespace lockstep {

template <typename T>
std::vector<T> TensorStep<T>::advance(const UpdateRule& rule, const T* g, int64_t count,
                                      int k) const {
  std::vector<T> direction(static_cast<size_t>(count));
  OptimizerArrays<T> own;
  own.count = count;
  own.weight = direction.data();
  own.grad = g;
  own.state_count = 1;
  own.states[0] = arrays.states[static_cast<size_t>(k)];
  own.step = arrays.step;
  own.formats = arrays.formats;
  own.formats.weight = arrays.formats.arithmetic;
  own.formats.rounding = Rounding::kNearestEven;
  own.formats.state_keys[0] = arrays.formats.state_keys[k];
  own.measured.states[0] = arrays.measured.states[k];
  kernels.of<T>().optimizer(rule, own, nullptr);
  return direction;
}

template <typename T>
void TensorStep<T>::finish(const T* direction, double length, double lr_of_decay,
                           double weight_decay) const {
  OptimizerArrays<T> own = arrays;
  own.grad = direction;
  own.state_count = 0;
  for (TensorStats*& measured : own.measured.states) measured = nullptr;
  DirectionRule rule;
  rule.lr = lr_of_decay;
  rule.weight_decay = weight_decay;
  rule.length = length;
  kernels.of<T>().optimizer(rule, own, stats);
}

template <typename T>
void TensorStep<T>::round(T* values, int64_t count) const {
  const Format& format = *arrays.formats.arithmetic;
  if (!is_native<T>(format)) {
    kernels.of<T>().quantize(values, values, count, {.format = &format}, nullptr);
  }
}

template <typename T>
T TensorStep<T>::rounded(double x) const {
  return static_cast<T>(round_to_format(x, *arrays.formats.arithmetic, Rounding::kNearestEven));
}

template struct TensorStep<float>;
template struct TensorStep<double>;

}  // namespace lockstep
