// A loss is a struct of three functions of one element; one loop runs them all.
#include "emulation/kernels/scalar/elements/pointwise_loss.h"

#include <cmath>
#include <stdexcept>

#include "emulation/accumulator/fast_round.h"
#include "emulation/math/exp_log.h"
#include "emulation/math/functions.h"
#include "src/core/chunks.h"

namespace lockstep {
namespace {

template <typename T>
struct Element {
  T x, t, p, v;  // v: pos_weight
};

// -1, 0 or 1; NaN is kept.
template <typename T>
T sign_of(T x) {
  return x > 0 ? T(1) : x < 0 ? T(-1) : x;
}

template <typename T>
struct Mse {
  static T term(const Element<T>& e) { return (e.x - e.t) * (e.x - e.t); }
  static T dx(const Element<T>& e) { return T(2) * (e.x - e.t); }
  static T dt(const Element<T>& e) { return T(2) * (e.t - e.x); }
};
template <typename T>
struct L1 {
  static T term(const Element<T>& e) { return std::fabs(e.x - e.t); }
  static T dx(const Element<T>& e) { return sign_of(e.x - e.t); }
  static T dt(const Element<T>& e) { return sign_of(e.t - e.x); }
};
template <typename T>
struct SmoothL1 {
  static T term(const Element<T>& e) {
    const T z = std::fabs(e.x - e.t);
    return z < e.p ? T(0.5) * z * z / e.p : z - T(0.5) * e.p;
  }
  static T dx(const Element<T>& e) {
    const T difference = e.x - e.t;
    return std::fabs(difference) < e.p ? difference / e.p : sign_of(difference);
  }
  static T dt(const Element<T>& e) { return -dx(e); }
};
template <typename T>
struct Huber {
  static T term(const Element<T>& e) {
    const T z = std::fabs(e.x - e.t);
    return z <= e.p ? T(0.5) * z * z : e.p * (z - T(0.5) * e.p);
  }
  static T dx(const Element<T>& e) {
    const T difference = e.x - e.t;
    return std::fabs(difference) < e.p ? difference : e.p * sign_of(difference);
  }
  static T dt(const Element<T>& e) { return -dx(e); }
};
// torch forms the entropy by xlogy, whose derivative is log t + 1 and, at t = 0, NaN (0 / 0).
template <typename T>
struct KlDiv {
  static T term(const Element<T>& e) {
    const T entropy = e.t == 0 ? T(0) : e.t * lockstep_log<T>(e.t);
    return entropy - e.t * e.x;
  }
  static T dx(const Element<T>& e) { return -e.t; }
  static T dt(const Element<T>& e) { return lockstep_log<T>(e.t) + e.t / e.t - e.x; }
};
template <typename T>
struct KlDivLogTarget {
  static T term(const Element<T>& e) { return lockstep_exp<T>(e.t) * (e.t - e.x); }
  static T dx(const Element<T>& e) { return -lockstep_exp<T>(e.t); }
  static T dt(const Element<T>& e) { return lockstep_exp<T>(e.t) * ((e.t - e.x) + T(1)); }
};
template <typename T>
struct BceWithLogits {
  // log(1 + exp(-x)) = max(-x, 0) + log(1 + y), y = exp(-|x|); the logarithm of the rounded 1 + y
  // is corrected by y / ((1 + y) - 1), which the rounding changed in the same proportion.
  static T softplus_of_minus(T x) {
    const T y = lockstep_exp<T>(-std::fabs(x)), one_plus = T(1) + y;
    const T log = one_plus == 1 ? y : lockstep_log<T>(one_plus) * (y / (one_plus - T(1)));
    return (x < 0 ? -x : T(0)) + log;
  }
  static T term(const Element<T>& e) {
    const T log_weight = (e.v - T(1)) * e.t + T(1);
    return (T(1) - e.t) * e.x + log_weight * softplus_of_minus(e.x);
  }
  static T dx(const Element<T>& e) {
    const T log_weight = (e.v - T(1)) * e.t + T(1);
    return log_weight * lockstep_sigmoid<T>(e.x) - e.v * e.t;
  }
  static T dt(const Element<T>& e) { return (e.v - T(1)) * softplus_of_minus(e.x) - e.x; }
};

// Calls body(Loss<T>{}).
template <typename T, typename Body>
void with_loss(PointwiseLoss loss, Body body) {
  switch (loss) {
    case PointwiseLoss::kMse:
      return body(Mse<T>{});
    case PointwiseLoss::kL1:
      return body(L1<T>{});
    case PointwiseLoss::kSmoothL1:
      return body(SmoothL1<T>{});
    case PointwiseLoss::kHuber:
      return body(Huber<T>{});
    case PointwiseLoss::kKlDiv:
      return body(KlDiv<T>{});
    case PointwiseLoss::kKlDivLogTarget:
      return body(KlDivLogTarget<T>{});
    case PointwiseLoss::kBceWithLogits:
      return body(BceWithLogits<T>{});
  }
  throw std::logic_error("pointwise loss: unknown");
}

template <typename T>
Element<T> element(const PointwiseLossArgs<T>& args, int64_t i) {
  return {args.x[i], args.target[i], args.parameter, args.pos_weight ? args.pos_weight[i] : T(1)};
}

// out[i] = function(element i) * weight[i] * factor(i). Functions have types of their own, so that
// they are inlined; a function pointer would be called for every element.
template <typename T, typename Function, typename Factor>
void for_elements(const PointwiseLossArgs<T>& args, T* out, Function function, Factor factor) {
  parallel_chunks(args.count, kElementGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      T value = function(element(args, i));
      if (args.weight != nullptr) value *= args.weight[i];
      out[i] = canonical_nan(value * factor(i));
    }
  });
}

}  // namespace

template <typename T>
void pointwise_loss_terms(const PointwiseLossArgs<T>& args, T* terms) {
  with_loss<T>(args.loss, [&]<typename Loss>(Loss) {
    for_elements(
        args, terms, [](const Element<T>& e) { return Loss::term(e); },
        [](int64_t) { return T(1); });
  });
}

template <typename T>
void pointwise_loss_backward(const PointwiseLossArgs<T>& args, LossOperand operand, const T* dloss,
                             int64_t dloss_stride, T* d) {
  const auto factor = [&](int64_t i) { return dloss[i * dloss_stride]; };
  with_loss<T>(args.loss, [&]<typename Loss>(Loss) {
    if (operand == LossOperand::kX) {
      for_elements(
          args, d, [](const Element<T>& e) { return Loss::dx(e); }, factor);
    } else {
      for_elements(
          args, d, [](const Element<T>& e) { return Loss::dt(e); }, factor);
    }
  });
}

#define LOCKSTEP_INSTANTIATE(T)                                                             \
  template void pointwise_loss_terms(const PointwiseLossArgs<T>&, T*);                      \
  template void pointwise_loss_backward(const PointwiseLossArgs<T>&, LossOperand, const T*, \
                                        int64_t, T*);
LOCKSTEP_INSTANTIATE(float)
LOCKSTEP_INSTANTIATE(double)
#undef LOCKSTEP_INSTANTIATE

}  // namespace lockstep
