// See whole_array.h.
#include "emulation/kernels/scalar/elements/whole_array.h"

namespace lockstep {

template <typename T>
double sum_of_squares(const T* x, int64_t count) {
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) {
    sum += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  }
  return sum;
}

template double sum_of_squares(const float*, int64_t);
template double sum_of_squares(const double*, int64_t);

}  // namespace lockstep
