// Each rule's formulas in the shared loop.
#include "emulation/kernels/scalar/elements/optimizer.h"

#include <variant>

#include "emulation/kernels/scalar/elements/optimizer_loop.h"

namespace lockstep {

template <typename T>
void scalar_optimizer(const UpdateRule& rule, const OptimizerArrays<T>& arrays,
                      UpdateStats* stats) {
  std::visit([&](const auto& numbers) { optimizer_loop::run_optimizer(numbers, arrays, stats); },
             rule);
}
template void scalar_optimizer(const UpdateRule&, const OptimizerArrays<float>&, UpdateStats*);
template void scalar_optimizer(const UpdateRule&, const OptimizerArrays<double>&, UpdateStats*);

}  // namespace lockstep
