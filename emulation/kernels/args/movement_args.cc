// Strides of dense and of repeated arrays.
#include "emulation/kernels/args/movement_args.h"

#include <cstddef>

namespace lockstep {

std::vector<int64_t> dense_strides(const std::vector<int64_t>& shape) {
  std::vector<int64_t> strides(shape.size());
  int64_t step = 1;
  for (size_t d = shape.size(); d-- > 0; step *= shape[d]) strides[d] = step;
  return strides;
}

std::vector<StridedDim> repeating_dims(const std::vector<int64_t>& from,
                                       const std::vector<int64_t>& to) {
  const std::vector<int64_t> x = dense_strides(from), y = dense_strides(to);
  const size_t missing = to.size() - from.size();
  std::vector<StridedDim> dims;
  for (size_t d = 0; d < to.size(); ++d) {
    const bool repeated = d < missing || from[d - missing] == 1;
    dims.push_back({to[d], repeated ? 0 : x[d - missing], y[d]});
  }
  return dims;
}

}  // namespace lockstep
